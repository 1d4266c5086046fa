"""What the service logs: a line for every request and socket, and what else there is to say."""
