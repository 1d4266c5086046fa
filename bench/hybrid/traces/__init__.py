"""What is asked of a prefix cache."""
