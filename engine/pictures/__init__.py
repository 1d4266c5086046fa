"""Pictures that requests show: brought by the service, seen by a tower, kept for who shows them."""
