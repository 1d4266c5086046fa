"""Benchmarks: every figure that the documentation quotes is printed by one of these."""
