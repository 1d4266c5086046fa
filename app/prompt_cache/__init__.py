"""What requests ask of the prompt cache, and what they are told of it."""
