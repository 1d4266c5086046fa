"""What a prefix cache of a hybrid model keeps: everybody's rules."""
