"""Steps computed: a plan becomes a batch, a forward pass and sampled tokens."""
