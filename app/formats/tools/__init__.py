"""How models write calls of functions, a format a file."""
