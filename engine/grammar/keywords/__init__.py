"""Keywords of JSON schemas in the words of those that `llguidance` has: none allows more than before."""
