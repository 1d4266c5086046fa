"""Usage as it is counted: in memory, in a journal that outlives the process, and then in Redis."""
