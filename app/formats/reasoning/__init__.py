"""How models write what they reason, a format a file."""
