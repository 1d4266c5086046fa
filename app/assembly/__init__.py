"""A service put together from its settings, started and ended."""
