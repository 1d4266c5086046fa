"""Redis, or what stands in for it: connections, commits over slots, notices, copies."""
