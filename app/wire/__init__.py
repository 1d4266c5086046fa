"""What is said: messages in and out, their fields and the errors; pydantic in, msgspec out."""
