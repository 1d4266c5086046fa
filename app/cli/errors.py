"""What a command says when it cannot do what it was asked."""

from __future__ import annotations


class CommandError(Exception):
    """A mistake or a trouble to report in one line, with exit status 1."""
