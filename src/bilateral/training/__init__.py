"""Training: step (what one step computes), optimiser, averaging, checkpoint, trainer, progress."""
