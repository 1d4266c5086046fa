"""Keywords of JSON schemas in words that `llguidance` has, which allow no more than they did."""
