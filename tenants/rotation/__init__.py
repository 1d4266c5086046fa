"""What walks over all records: other secrets in place of older ones."""
