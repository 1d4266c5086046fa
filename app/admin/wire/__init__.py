"""What operators send and are sent."""
