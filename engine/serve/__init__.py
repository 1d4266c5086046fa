"""The engine's loop, its process, and the clients at the other end."""
