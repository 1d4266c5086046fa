"""What an operator writes, with the audit's line of it."""
