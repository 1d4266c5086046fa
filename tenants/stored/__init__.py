"""What is kept for tenants' clients: responses, conversations, completions."""
