"""What several tokens a step add."""
