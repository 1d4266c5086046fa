"""All that says no, and what is paid for: keys, the gate, bookings, connections."""
