"""What adapters cost: on streams, to load, and behind a conversation that is cached."""
