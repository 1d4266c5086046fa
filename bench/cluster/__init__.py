"""Benches of several engines behind one service."""
