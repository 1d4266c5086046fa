"""Checkpoints of quantized weights, read as they are: codes, scales and minima."""
