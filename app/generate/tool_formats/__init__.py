"""How models write the functions that they call: a module a format, each a reader of the text."""
