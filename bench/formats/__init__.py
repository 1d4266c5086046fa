"""Benches of answers that are held to formats, and of formats that are meant to harm."""
