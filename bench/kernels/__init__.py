"""Benches of the GPU's kernels."""
