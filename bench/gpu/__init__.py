"""What a GPU makes of it."""
