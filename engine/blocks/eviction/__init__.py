"""Which blocks go when memory is needed, and what keeps them."""
