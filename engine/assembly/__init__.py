"""An engine put together from its configuration, and run in a process of its own."""
