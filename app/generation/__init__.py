"""One way to start an answer, and to follow it as text until its end."""
