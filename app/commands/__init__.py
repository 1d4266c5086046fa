"""The command line's commands, a module each."""
