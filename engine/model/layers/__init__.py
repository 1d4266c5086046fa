"""Decoders that read and write KV blocks: whole, or one rank's part of them."""
