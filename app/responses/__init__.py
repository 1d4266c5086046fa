"""The life of a response: its events, its run, where it is found again, and what it leaves."""
