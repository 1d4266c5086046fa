"""The paged engine: requests in, tokens out. It knows no HTTP, no Redis and no tenant record."""
