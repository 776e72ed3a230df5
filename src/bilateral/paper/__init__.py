"""What the paper claims and how to rerun it: recipes (a training run for each model); no torch."""
