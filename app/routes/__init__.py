"""The HTTP and WebSocket endpoints, one module a resource."""
