"""What conversations and registered prompts have left in the cache, as operators are told of it."""

from __future__ import annotations

import random

import pytest

from engine.api import CachePolicy, ChainState, EngineUnavailable
from engine.blocks.chains import Chains
from engine.blocks.hashing import HASH_BYTES
from engine.blocks.tiers import Tiers
from engine.serve.core import EngineCore
from engine.serve.local import LocalEngine
from tests.engine.clock import Clock
from tests.engine.simulated_model import expected_output, random_prompt
from tests.engine.simulation import make_request, run_to_end, simulated_core

SYSTEM = random_prompt(random.Random(1), 18)
"""Four full blocks, and two tokens."""
SAID = random_prompt(random.Random(2), 10)
LEASE = CachePolicy(lease_s=60.0)


def ask(core: EngineCore, said: list[int], conversation: str | None, **fields: object) -> list[int]:
    """Have a turn computed under the registered prompt; all that was said then."""
    fields = {"user": "u", "cache": LEASE, "shared_tokens": len(SYSTEM)} | fields
    request = make_request(
        f"r{random.random()}", SYSTEM + said, 5, conversation=conversation, **fields
    )
    core.submit(request)
    run_to_end(core)
    return said + expected_output(SYSTEM + said, 5)


def chains(core: EngineCore, tenant: str = "a") -> list[ChainState]:
    page = core.scheduler.lifecycle.chains.page(tenant)
    assert page.next is None
    return page.chains


def test_a_conversation_and_its_prompt_are_told_apart() -> None:
    clock = Clock()
    core = simulated_core(clock=lambda: clock.now)
    said = ask(core, SAID, "first")
    clock.now += 20.0
    ask(core, said + SAID, "first")
    clock.now += 5.0
    conversation, prompt = chains(core)
    assert (conversation.conversation, prompt.conversation) == ("first", None)
    assert conversation.prompt == prompt.prompt != b""
    num_tokens = len(SYSTEM + said + SAID) + 5
    assert conversation.tokens == conversation.found_tokens == num_tokens - num_tokens % 4
    assert (conversation.shared_tokens, prompt.tokens, prompt.shared_tokens) == (16, 16, 16)
    assert (conversation.requests, conversation.hits) == (2, 1)
    assert (prompt.requests, prompt.hits) == (2, 1)
    assert conversation.leased_tokens == conversation.tokens
    assert (conversation.lease_seconds, prompt.lease_seconds) == (55.0, 55.0)
    assert (conversation.age_seconds, conversation.idle_seconds) == (25.0, 5.0)
    assert conversation.references == prompt.references == 0


def test_a_blocks_place_is_not_found_across_two_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    core = simulated_core()
    known = core.scheduler.lifecycle.chains
    hashes = [bytes([number]) * (HASH_BYTES - 1) + b"\7" for number in range(3)]
    known.note(make_request("r", SAID, 1, conversation="first"), hashes, 0)
    for number, one in enumerate(hashes):
        (place,) = known.places(one)
        assert (place.number, place.blocks) == (number + 1, 3)
    between = hashes[0][5:] + hashes[1][:5]
    assert known.places(between) == []
    monkeypatch.setattr("engine.blocks.chains._LOOKED_THROUGH", 3 * HASH_BYTES - 1)
    known.note(make_request("r", SAID, 1, conversation="second"), hashes[2:], 0)
    known.note(make_request("r", SAID, 1, conversation="third"), hashes, 0)
    assert [one.conversation for one in known.places(hashes[0])] == ["third"]


def test_what_goes_on_takes_the_place_of_what_it_goes_on_from() -> None:
    core = simulated_core()
    said = ask(core, SAID, "resp_1")
    ask(core, said + SAID, "resp_2")
    ask(core, said + SAID[:3], "resp_3")
    found = {one.conversation: (one.requests, one.hits) for one in chains(core)}
    # The third one leaves the second one's way before its end.
    assert found == {"resp_2": (2, 1), "resp_3": (1, 1), None: (3, 2)}


def test_of_what_is_gone_nothing_is_told() -> None:
    core = simulated_core(num_blocks=32)
    ask(core, SAID, "first", cache=CachePolicy())
    assert [one.conversation for one in chains(core)] == ["first", None]
    ask(core, random_prompt(random.Random(3), 104), None, tenant="b", cache=CachePolicy())
    assert chains(core) == []
    assert [one.conversation for one in chains(core, "b")] == [None]


def test_what_is_left_of_a_conversation_is_told() -> None:
    core = simulated_core(num_blocks=40)
    ask(core, random_prompt(random.Random(4), 60), "first", cache=CachePolicy())
    ask(core, random_prompt(random.Random(5), 60), None, tenant="b", cache=CachePolicy())
    (one,) = (one for one in chains(core) if one.conversation)
    assert one.shared_tokens < one.found_tokens < one.tokens


def test_blocks_in_host_memory_are_found_and_told() -> None:
    core = simulated_core(num_blocks=32, num_host_blocks=64)
    ask(core, SAID, "first", cache=CachePolicy())
    ask(core, random_prompt(random.Random(3), 104), None, tenant="b", cache=CachePolicy())
    conversation, prompt = chains(core)
    assert conversation.host_tokens == conversation.found_tokens == conversation.tokens
    assert prompt.host_tokens == prompt.tokens


def test_who_holds_the_last_block_is_counted() -> None:
    core = simulated_core()
    warming = make_request("w", SYSTEM, 0, user="u", shared_tokens=len(SYSTEM), pin="a/desk")
    core.submit(warming)
    run_to_end(core)
    (prompt,) = chains(core)
    assert (prompt.references, prompt.requests, prompt.hits) == (1, 0, 0)
    said = ask(core, SAID, "first")
    core.submit(make_request("r", SYSTEM + said, 20, shared_tokens=len(SYSTEM), user="u"))
    core.step()
    conversation, prompt = chains(core)
    assert (conversation.references, prompt.references) == (1, 2)
    run_to_end(core)


def test_nobody_is_told_of_others() -> None:
    core = simulated_core()
    ask(core, SAID, "theirs", tenant="b")
    assert chains(core) == []
    core.forget_tenant("b")
    assert chains(core, "b") == []
    assert core.scheduler.lifecycle.chains._tenants == {}


def test_what_is_not_to_be_cached_is_not_told() -> None:
    core = simulated_core()
    ask(core, SAID, "first", cache=False)
    assert chains(core) == []


@pytest.mark.parametrize("seed", range(5))
def test_the_books_of_random_chains_hold_and_pages_are_complete(seed: int) -> None:
    rng = random.Random(seed)
    tiers = Tiers(4096, 0, 4)
    pool, known = tiers.pool, Chains(tiers, most_bytes=40_000)
    told: list[str] = []
    for number in range(400):
        tenant, count = rng.choice(["a", "a", "a", "b", "c"]), rng.randrange(12)
        hashes = [rng.randbytes(16) for _ in range(count)]
        for block, one in zip(pool.allocate(count, tenant), hashes, strict=True):
            pool.register(block, one)
        name = rng.choice([None, f"c{number}", f"c{rng.randrange(40)}"])
        request = make_request(
            "r", [5] * 4 * count, 1, tenant, shared_tokens=rng.choice([0, 9]), conversation=name
        )
        known.note(request, hashes, found_tokens=rng.randrange(4 * count + 1))
        if rng.random() < 0.01:
            known.forget(rng.choice("abc"))
        known.check()
    for tenant in "abc":
        assert known._tenants[tenant].num_bytes <= 10_000
        told = [one.number for one in known.page(tenant).chains]
        assert told == sorted(told, reverse=True)
        assert told


def test_a_page_looks_up_so_many_blocks_and_says_where_to_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("engine.blocks.chains._LOOKED_UP", 20)
    core = simulated_core(num_blocks=256)
    for number in range(12):
        prompt = random_prompt(random.Random(number), 34)
        core.submit(make_request(f"r{number}", prompt, 3, conversation=f"c{number}"))
        run_to_end(core)
    names, before, num_pages = [], None, 0
    while num_pages == 0 or before is not None:
        page = core.scheduler.lifecycle.chains.page("a", before)
        names += [one.conversation for one in page.chains]
        before, num_pages = page.next, num_pages + 1
    assert names == [f"c{number}" for number in reversed(range(12))]
    assert num_pages == 4


async def test_the_client_is_told_in_a_turn_of_the_loop() -> None:
    engine = LocalEngine(simulated_core)
    with pytest.raises(EngineUnavailable):
        await engine.chains("a")
    await engine.start()
    async for _ in engine.generate(make_request("r", SAID, 4, conversation="first")):
        pass
    page = await engine.chains("a")
    assert [one.conversation for one in page.chains] == ["first"]
    (one,) = page.chains
    assert (await engine.chains("a", one.number)).chains == []
    assert (await engine.chains("b")).chains == []
    await engine.close()
