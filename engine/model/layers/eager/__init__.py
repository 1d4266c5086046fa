"""The model as `transformers` has it, over pages."""
