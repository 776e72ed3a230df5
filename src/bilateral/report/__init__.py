"""The page: what run folders hold, drawn and written as one HTML file; no torch."""
