"""Lines of generation, the requests that they belong to, and what a step computes of them."""
