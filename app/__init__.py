"""The service: what clients and operators touch. `docs/service.md` tells the way of a request."""
