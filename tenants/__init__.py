"""Who may use the service, and how much: records, keys and system prompts, kept in Redis."""
