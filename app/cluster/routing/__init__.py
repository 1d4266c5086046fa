"""To which replica a request goes: what is known of their caches, and the choice."""
