"""The process and its machine: threads, cores, memory, and what is left of it."""
