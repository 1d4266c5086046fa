"""Benches of the engine: its steps, its cache, its models."""
