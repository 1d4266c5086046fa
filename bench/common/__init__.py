"""What the benches share: the machine, load, figures and pictures."""
