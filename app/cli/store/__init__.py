"""Commands straight on the store, whether a service runs or not."""
