"""How models write what they reason and the functions that they call, and how that is read."""
