"""Guesses at what a sequence's next tokens are, to be verified several in one step. No torch."""
