"""API keys of tenants and tokens of operators."""
