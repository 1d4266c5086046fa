"""Benches of the whole service, over real sockets."""
