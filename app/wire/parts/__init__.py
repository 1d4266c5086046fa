"""Parts of messages that are no text."""
