"""Models of experts with random weights, beside other servers of the same weights."""
