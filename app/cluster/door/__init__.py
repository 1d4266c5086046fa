"""A front door's side: the replicas as it knows them, and which of them takes a request."""
