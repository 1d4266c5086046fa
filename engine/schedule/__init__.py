"""Which tokens are computed next, and who makes room. No torch: policy is testable without it."""
