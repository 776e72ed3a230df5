"""The trained model for use elsewhere, without this package, and its model card."""
