"""Sequences that are held to grammars: what they may go on with."""
