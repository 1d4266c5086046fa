"""Registered system prompts: their texts, room, variables, and the index of their blocks."""
