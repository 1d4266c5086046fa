"""What a new replica computes before it takes requests."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec import structs

from app.cluster.door import hot_prompts as heads_module
from app.cluster.door.hot_prompts import Head, Heads
from engine.api import AdapterUse, CachePolicy, EngineRequest, SamplingParams
from tests.engine.simulation import make_request

BLOCK = 4
NOTHING = SamplingParams(max_tokens=0, temperature=0.0)
NOW = 10.0


def registered(tenant: str, name: str, pin: str | None = None) -> EngineRequest:
    prompt = list(name.encode() * BLOCK)
    request = make_request(f"{tenant}/{name}", prompt, tenant=tenant, shared_tokens=len(prompt))
    return structs.replace(request, sampling=NOTHING, pin=pin)


def leased(name: str, up_to: int | None = None) -> EngineRequest:
    cache = CachePolicy(lease_s=30.0, up_to=up_to)
    return make_request(name, list(name.encode() * 10), cache=cache)


def test_a_head_is_computed_with_its_adapter_where_that_acts_in_it() -> None:
    for start, is_used in ((0, True), (7, True), (8, False)):
        heads, use = Heads(), AdapterUse(b"adapter", start)
        note(heads, structs.replace(leased("talk", up_to=8), adapter=use))
        (head,) = share(heads, 0, count=1)
        assert head.request.adapter == (use if is_used else None)


def note(heads: Heads, request: EngineRequest) -> None:
    blocks = range(len(request.prompt) // BLOCK)
    hashes = [f"{request.tenant} {request.prompt} {one}".encode() for one in blocks]
    heads.note(request, hashes, BLOCK, NOW)


def share(
    heads: Heads, replica: int, count: int = 2, now: float = NOW, *, held: bool = False
) -> list[Head]:
    def is_held(hashes: Sequence[bytes]) -> bool:
        return held

    return heads.share_of(replica, range(count), now, is_held)


def test_each_registered_prompt_is_one_replica_s_and_pinned_ones_are_everybody_s() -> None:
    heads = Heads()
    for number in range(40):
        note(heads, registered("a", f"p{number}"))
    note(heads, registered("a", "pinned", pin="a/pinned"))
    shares = [share(heads, replica, count=4) for replica in range(4)]
    prompts = [bytes(head.request.prompt) for one in shares for head in one]
    assert len(prompts) == 40 + 4
    assert len(set(prompts)) == 41
    assert all(len(one) > 1 for one in shares)


def test_a_leased_head_is_computed_where_nobody_has_it_any_more_until_its_end() -> None:
    heads = Heads()
    note(heads, leased("talk", up_to=9))
    (head,) = share(heads, 0, count=1)
    assert head.request.prompt == list(b"talktalkt")
    assert head.request.sampling.max_tokens == 0
    assert (head.request.cache.lease_s, len(head.hashes)) == (30.0, 2)
    assert not share(heads, 0, count=1, held=True)
    assert share(heads, 0, count=1, now=NOW + 30)
    assert not share(heads, 0, count=1, now=NOW + 31)
    assert not share(heads, 0, count=1)


def test_other_prompts_are_nobody_s() -> None:
    heads = Heads()
    note(heads, make_request("plain", [5] * 40))
    note(heads, structs.replace(make_request("prewarm", [5] * 40), sampling=NOTHING))
    note(heads, leased("short", up_to=3))
    assert not share(heads, 0, count=1)


def test_what_is_forgotten_or_unpinned_is_not_computed() -> None:
    heads = Heads()
    note(heads, registered("a", "one"))
    note(heads, registered("b", "two", pin="b/two"))
    note(heads, registered("b", "three"))
    heads.unpin("b/two")
    assert len(share(heads, 0, count=1)) == 2
    heads.forget_tenant("b")
    (left,) = share(heads, 0, count=1)
    assert left.request.tenant == "a"


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads_module, "_MOST_TOKENS", 32)
    heads = Heads()
    for name in ("one", "two", "one", "six"):  # of twelve tokens each
        note(heads, registered("a", name))
    kept = [bytes(head.request.prompt[:3]) for head in share(heads, 0, count=1)]
    assert kept == [b"one", b"six"]
