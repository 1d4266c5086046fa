"""What lies in Redis is encrypted: who reads it without the pepper learns no text and no key.

The pepper wraps the namespace secrets of tenants and share groups, which encrypt the rest.
"""
