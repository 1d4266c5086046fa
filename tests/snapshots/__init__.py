"""What is seen of the service from outside, as it was when somebody last meant to change it.

`python -m tests.snapshots` writes the files anew; `tests/test_unchanged.py` compares them with what
the code says now. Nothing in them tells where in the code a thing is.
"""
