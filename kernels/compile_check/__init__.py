"""Whether every Triton kernel compiles, and what it takes of a GPU that need not be there."""
