"""Parts of messages that are no text, and the files that these name."""
