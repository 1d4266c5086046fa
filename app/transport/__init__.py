"""Bytes between the service and its clients: sockets, lanes, server-sent events, bodies."""
