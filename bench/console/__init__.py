"""What the console costs a browser."""
