"""Work on a deep stack."""

import os
import threading
import time

import pytest

from engine.grammar import source
from engine.grammar.source import with_deep_stack


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def until(is_so: bool) -> int:
    """The niceness once it has risen, or at once."""
    usual = niceness()
    for _ in range(2000 if is_so else 0):
        if niceness() > usual:
            break
        time.sleep(0.005)
    return niceness() - usual


def test_what_takes_long_gives_way_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = niceness()
    monkeypatch.setattr(source, "_USUAL_SECONDS", 0.0)
    assert with_deep_stack(lambda: until(True)) == min(10, 19 - usual)
    assert niceness() == usual
    monkeypatch.setattr(source, "_USUAL_SECONDS", 60.0)
    assert with_deep_stack(lambda: until(False)) == 0


def test_what_fails_raises_where_it_is_waited_for() -> None:
    def fail() -> None:
        raise KeyError("why")

    with pytest.raises(KeyError, match="why"):
        with_deep_stack(fail)
