from __future__ import annotations

from app.recent import Recent


def kept(recent: Recent[str, str]) -> str:
    return "".join(recent)


def test_the_oldest_go_for_the_newest_which_stays_whatever_it_weighs() -> None:
    recent = Recent[str, str](5, len)
    for key, value in (("a", "aa"), ("b", "bb"), ("c", "c")):
        recent.put(key, value)
    assert kept(recent) == "abc"
    recent.put("d", "ddd")
    assert kept(recent) == "cd"
    recent.put("e", "e" * 9)
    assert kept(recent) == "e"
    recent.drop("e")
    recent.drop("e")
    recent.put("f", "fffff")
    assert kept(recent) == "f"


def test_what_is_used_is_newer_and_what_is_looked_at_is_not() -> None:
    recent = Recent[str, str](9, len, most_values=2)
    recent.put("a", "a")
    recent.put("b", "b")
    assert (recent.use("a"), recent.get("b"), recent.use("x")) == ("a", "b", None)
    recent.put("c", "c")
    assert kept(recent) == "ac"
    recent.put("a", "another")
    assert (kept(recent), recent.get("a")) == ("ca", "another")
