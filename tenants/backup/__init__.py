"""All that is kept of tenants, in a file and back."""
