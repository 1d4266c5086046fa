"""What checkpoints of recurrent states are worth in a prefix cache of hybrid models."""
