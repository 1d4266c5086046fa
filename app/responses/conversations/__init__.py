"""Conversations that are kept for clients, under names of their own."""
