"""One step's tensors."""
