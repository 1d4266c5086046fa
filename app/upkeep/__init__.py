"""What runs beside requests: connections, warming, draining, metrics."""
