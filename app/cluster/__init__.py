"""Past one machine: several engines behind one service."""
