"""Text completions: prompts that are no conversations, continued, and scored where asked for."""
