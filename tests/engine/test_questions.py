"""The table of what an engine can be asked and told, and how its entries cross the border."""

from __future__ import annotations

import pytest

from engine.api import EngineError
from engine.questions import (
    ORDERS,
    QUESTIONS,
    AskAdapters,
    AskChains,
    AskFates,
    AskRoll,
    AskStats,
    AskWall,
    ForgetOthers,
    ForgetTenant,
    KeepUnder,
    Said,
    ServedElsewhere,
    Unpin,
    Unwatch,
    for_one_of,
)
from engine.serve.messages import Ask, decode_question, decode_to_engine, encode

SAID: list[Said] = [
    AskStats(),
    AskFates([b"hash"]),
    AskChains("acme", 3),
    AskAdapters([b"name"]),
    AskWall("watcher", 1),
    AskRoll(1, 7),
    Unwatch("watcher"),
    Unpin("pin"),
    ForgetTenant("acme"),
    ForgetOthers({"acme": "secret"}),
    KeepUnder("acme", "secret"),
    ServedElsewhere({"acme": 3.0}),
]


def test_every_entry_is_a_question_or_an_order() -> None:
    assert {type(said) for said in SAID} == QUESTIONS.keys() | ORDERS.keys()
    assert not QUESTIONS.keys() & ORDERS.keys()


@pytest.mark.parametrize("said", SAID, ids=lambda said: type(said).__name__)
def test_what_is_said_arrives_as_it_was(said: Said) -> None:
    if type(said) in ORDERS:
        assert decode_to_engine(encode(said)) == said
    else:
        assert decode_to_engine(encode(Ask(5, said))) == Ask(5, said)
        assert decode_question(encode(said)) == said


def test_one_of_several_engines_is_asked_as_if_it_were_alone() -> None:
    assert for_one_of(["first", "second"], AskWall("watcher", 1)) == ("second", AskWall("watcher"))
    assert for_one_of(["first", "second"], AskStats()) == ("first", AskStats())
    with pytest.raises(EngineError, match="there is no number 2, but 2 of them"):
        for_one_of(["first", "second"], AskRoll(2))
    with pytest.raises(EngineError, match="there is no number 1, but one engine"):
        for_one_of(["alone"], AskRoll(1))
