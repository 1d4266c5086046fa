"""The operations in plain torch: slow, and meant to be obviously correct."""
