"""Adapters of the model that requests ask for: their files, and their way into the block pool."""
