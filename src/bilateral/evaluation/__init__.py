"""Evaluation: robustness (flags for images in memory), campaign (a target, its files, resuming)."""
