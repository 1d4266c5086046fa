"""Chat completions: what a body asks for, and what its answer looks like."""
