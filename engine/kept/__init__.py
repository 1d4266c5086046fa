"""Blocks on disk: what a tenant was promised to find again is there after a restart, too."""
