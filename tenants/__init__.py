"""Who may use the service: tenants, their keys, system prompts and conversations, kept in Redis."""
