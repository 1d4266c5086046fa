"""What pictures cost, and what files that are none do."""
