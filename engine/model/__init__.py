"""From a folder of weights to a model that computes over blocks."""
