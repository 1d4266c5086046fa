"""Outputs that are held to a grammar: sources, compiled grammars, and which tokens they allow."""
