"""What adapters change in a model, and their weights among the pages of its KV memory."""
