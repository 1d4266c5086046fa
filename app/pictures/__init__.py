"""Pictures that clients send: taken in within bounds, and looked at in a process of their own."""
