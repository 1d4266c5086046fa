"""How models write what they reason: a module a kind of format, each a reader of the answer."""
