"""What tenants used: counted, journalled, handed in, priced."""
