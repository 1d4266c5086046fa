"""A request in words of no API."""
