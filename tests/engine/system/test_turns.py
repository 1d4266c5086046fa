"""Places are given to tenants in turn."""

from __future__ import annotations

from engine.system.turns import Turns


def taken(turns: Turns[str]) -> list[str]:
    found = list[str]()
    while (turn := turns.take()) is not None:
        assert turn[0] == turn[1][0]
        found.append(turn[1])
    return found


def test_who_has_much_waiting_leaves_places_and_waits_for_its_next_turn() -> None:
    turns: Turns[str] = Turns(4, 2)
    for name in ("a1", "a2", "a3", "a4"):
        turns.add(name[0], name)
    assert taken(turns) == ["a1", "a2"]
    for name in ("b1", "c1", "b2"):
        turns.add(name[0], name)
    assert taken(turns) == ["b1", "c1"]
    turns.end("a")
    assert taken(turns) == ["a3"]
    turns.end("b")
    turns.end("c")
    assert taken(turns) == ["b2"]
    for tenant in "aab":
        turns.end(tenant)
    assert taken(turns) == ["a4"]
    assert taken(turns) == []
