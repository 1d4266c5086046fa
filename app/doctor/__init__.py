"""What a service would find on this machine: looked at, judged, and put in words."""
