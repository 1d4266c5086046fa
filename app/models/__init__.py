"""Which models there are to serve: those at hand, those that would fit, and what they take."""
