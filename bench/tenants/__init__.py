"""Benches of what tenants may do to each other."""
