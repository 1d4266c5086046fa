"""Blocks of KV memory: which hold what, who holds them, and where they move."""
