"""What the paper claims and how to rerun it, and our own recipes beyond it; no torch."""
