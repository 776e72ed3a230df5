"""The page: the contents of run folders, drawn and written as one HTML file; no torch."""
