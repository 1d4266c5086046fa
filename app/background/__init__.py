"""What runs beside requests: warming, bookings, webhooks, sweeping, and who starts it again."""
