"""Adapters that tenants and share groups own: their versions, and their files in pieces."""
