"""For operators: `/admin` over HTTP, and what the commands have in common with it."""
