"""What holds for the test process and all that it starts, decided before anything imports torch."""

import gc
import os
import signal
from collections.abc import Generator
from typing import Any

import pytest

from engine.system.threads import thread_environment
from tests.effort import register_profiles

# One thread for the references computed here: the engines under test need the cores.
os.environ.update(thread_environment(threads=1))

# A shell lets its background jobs ignore Ctrl-C, and so would every program that is tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

register_profiles()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Each worker imports everything, and makes thousands of tests: to look for garbage among them
    again and again takes a fifth of that time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="module", autouse=True)
def _what_was_there_is_no_garbage() -> None:
    """Each model that is loaded has the garbage collected: to look through a million objects that
    were imported takes longer than to load a tiny one. Done anew, since tests may undo it.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)  # where pytest-xdist is installed
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """With `--dist loadfile` tests that share a service stay together as well."""
    if config.getvalue("dist") != "loadfile":
        return None
    from tests.side_by_side import SideBySide

    return SideBySide(config, log)
