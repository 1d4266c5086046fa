"""What was found, as figures, tables and pictures."""
