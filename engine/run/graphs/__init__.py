"""Steps that are recorded at start and replayed: the host says one word where it said hundreds."""
