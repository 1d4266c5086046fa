"""Tells this process which replicas take calls, as Ray Serve's router learns of it."""

from __future__ import annotations

from collections.abc import Callable

Watcher = Callable[[frozenset[str]], None]

_watchers: list[Watcher] = []
_names: frozenset[str] = frozenset()


def watch_replicas(watcher: Watcher) -> Callable[[], None]:
    """Have `watcher` told the replicas' ids, now and whenever they change, in some thread.

    The result ends it. None are known before this process uses a handle.
    """
    _watchers.append(watcher)
    watcher(_names)
    return lambda: _watchers.remove(watcher)


def tell(names: frozenset[str]) -> None:
    """These replicas take calls from now on."""
    global _names
    _names = names
    for watcher in _watchers:
        watcher(names)
