"""Models that see: their towers, as `transformers` has them, in front of a text model."""
