"""The operations in C, for CPUs: the Python side beside the sources."""
