"""Conversations: what was said in them, kept for the requests that name them."""
