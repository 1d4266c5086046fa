"""The operator's endpoints, one module a resource."""
