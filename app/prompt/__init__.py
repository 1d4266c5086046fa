"""From the items of a conversation to token ids: template, system prompts, history, sealing."""
