"""Anthropic's Messages API: a body as a request to generate, and the answer in its blocks."""
