"""What tenants may take: decided in Redis, and by an estimate of each process without it."""
