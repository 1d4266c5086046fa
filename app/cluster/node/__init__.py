"""A replica's side: one engine on Ray Serve, deployed, scaled and heard."""
