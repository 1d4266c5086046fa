"""Blocks kept on disk: found again after a restart, and when memory had no room for them."""
