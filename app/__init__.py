"""The service: what a client or an operator touches."""
