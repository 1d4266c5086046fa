"""The keys that an owner's records are encrypted under, and records encrypted anew."""
