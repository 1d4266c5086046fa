"""The operations in Triton, for GPUs."""
