"""Reuse inside a block: the tokens that a prompt shares with a block which it does not match."""

import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.blocks.partial_hits import PartialHits, place
from engine.serve.core import EngineCore
from tests.effort import scaled
from tests.engine.simulated_model import expected_output, random_prompt
from tests.engine.simulation import cached_tokens, make_request, run_to_end, simulated_core

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
PARENT = b"p" * 16


def test_the_longest_common_beginning_is_found_among_many_siblings() -> None:
    rng = random.Random(1)
    hits = PartialHits()
    blocks = {i: [rng.randrange(3) for _ in range(8)] for i in range(200)}
    blocks = {i: t for i, t in blocks.items() if t not in [blocks[j] for j in range(i)]}
    for block, tokens in blocks.items():
        hits.add(block, place(KEY, PARENT, tokens))
    hits.settle()
    for length in (1, 3, 8):
        for _ in range(50):
            wanted = [rng.randrange(3) for _ in range(length)]
            found = hits.longest(place(KEY, PARENT, wanted))
            commons = {b: common(tokens, wanted) for b, tokens in blocks.items()}
            if found is None:
                assert max(commons.values()) == 0
            else:
                assert found[1] == commons[found[0]] == max(commons.values())


def test_large_token_ids_are_told_apart() -> None:
    hits = PartialHits()
    hits.add(1, place(KEY, PARENT, [70_000, 5]))
    hits.add(2, place(KEY, PARENT, [70_001, 5]))
    hits.settle()
    assert hits.longest(place(KEY, PARENT, [70_001, 6])) == (2, 1)
    assert hits.longest(place(KEY, PARENT, [70_002, 5])) is None


def test_only_the_same_namespace_and_parent_are_looked_at() -> None:
    hits = PartialHits()
    hits.add(1, place(KEY, PARENT, [1, 2, 3]))
    hits.settle()
    assert hits.longest(place(KEY, PARENT, [1, 2, 9])) == (1, 2)
    assert hits.longest(place(OTHER_KEY, PARENT, [1, 2, 9])) is None
    assert hits.longest(place(KEY, b"q" * 16, [1, 2, 9])) is None


def test_a_block_is_found_only_once_it_is_computed() -> None:
    hits = PartialHits()
    hits.add(1, place(KEY, PARENT, [1, 2, 3]))
    assert hits.longest(place(KEY, PARENT, [1, 2])) is None
    hits.settle()
    assert hits.longest(place(KEY, PARENT, [1, 2])) == (1, 2)
    hits.drop(1)
    assert hits.longest(place(KEY, PARENT, [1, 2])) is None


PROMPT = random_prompt(random.Random(1), 41)
OTHER = random_prompt(random.Random(2), 20)


def computed(core: EngineCore, prompt: list[int], **fields: object) -> None:
    core.submit(make_request("first", prompt, 1, **fields))
    run_to_end(core)


def test_the_head_of_a_block_is_copied_where_a_prompt_leaves_a_cached_chain() -> None:
    for shared in range(42):
        core = simulated_core()
        computed(core, PROMPT)
        prompt = PROMPT[:shared] + OTHER
        request = make_request("second", prompt, 6)
        assert cached_tokens(core, request) == shared
        assert core.stats().in_block_tokens == shared % 4
        rest = run_to_end(core)["second"]
        assert rest == expected_output(prompt, 6)[1:]


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    core = simulated_core()
    computed(core, PROMPT)
    assert cached_tokens(core, make_request("same", PROMPT[:40], 1)) == 39


def test_the_tail_of_a_conversation_is_continued_where_it_ended() -> None:
    core = simulated_core()
    who = {"user": "ann"}
    core.submit(make_request("first", PROMPT, 6, **who))  # type: ignore[arg-type]
    history = PROMPT + run_to_end(core)["first"]
    assert len(history) == 47
    second = [*history, *OTHER]
    assert cached_tokens(core, make_request("bob", second, 1, user="bob")) == 0
    run_to_end(core)
    core.submit(make_request("second", second, 6, **who))  # type: ignore[arg-type]
    assert run_to_end(core)["second"] == expected_output(second, 6)
    assert core.stats().in_block_tokens == 2, "the last token was not computed"
    assert core.stats().cached_tokens == 46


def test_tails_are_not_moved_to_the_host_tier() -> None:
    core = simulated_core(num_blocks=12, num_host_blocks=12)
    computed(core, PROMPT)
    assert core.stats().blocks_cached == 11
    computed(core, random_prompt(random.Random(4), 47), cache=False)
    assert core.stats().swapped_out == 10


def test_a_private_block_behind_a_shared_prefix_is_for_its_user_alone() -> None:
    core = simulated_core()
    who = {"shared_tokens": 10, "user": "ann"}
    computed(core, PROMPT, **who)
    prompt = PROMPT[:19] + OTHER
    for user, cached in (("ann", 19), ("bob", 8)):
        request = make_request("x", prompt, 1, user=user, shared_tokens=10)
        assert cached_tokens(core, request) == cached
        run_to_end(core)
    stranger = make_request("x", PROMPT[:7] + OTHER, 1, tenant="b", user="ann", shared_tokens=10)
    assert cached_tokens(core, stranger) == 0


def test_the_head_of_a_shared_block_is_for_everyone_in_the_namespace() -> None:
    core = simulated_core()
    computed(core, PROMPT, shared_tokens=12, user="ann")
    request = make_request("x", PROMPT[:11] + OTHER, 1, user="bob", shared_tokens=12)
    assert cached_tokens(core, request) == 11


def test_requests_without_cache_neither_give_nor_take_heads() -> None:
    core = simulated_core()
    computed(core, PROMPT, cache=False)
    prompt = PROMPT[:19] + OTHER
    assert cached_tokens(core, make_request("x", prompt, 1)) == 0
    run_to_end(core)
    assert cached_tokens(core, make_request("y", PROMPT[:15] + OTHER, 1, cache=False)) == 0


def test_a_block_that_the_same_step_computes_is_not_copied() -> None:
    core = simulated_core(step_token_budget=128)
    core.submit(make_request("first", PROMPT, 4))
    core.submit(make_request("second", PROMPT[:19] + OTHER, 4))
    cached = {delta.request_id: delta.cached_tokens for delta in core.step()}
    assert cached == {"first": 0, "second": 16}
    run_to_end(core)


def test_a_forgotten_tenants_heads_are_not_found() -> None:
    core = simulated_core()
    computed(core, PROMPT)
    core.scheduler.forget_tenant("a")
    assert cached_tokens(core, make_request("x", PROMPT[:19] + OTHER, 1)) == 0


def test_a_full_pool_gives_up_a_head_rather_than_a_request() -> None:
    core = simulated_core(num_blocks=11)
    computed(core, PROMPT)
    prompt = PROMPT[:19] + random_prompt(random.Random(3), 44 - 19 - 1)
    assert cached_tokens(core, make_request("x", prompt, 1)) == 16


def common(one: list[int], other: list[int]) -> int:
    pairs = list(zip(one, other, strict=False))
    return next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))


class PartialHitsMachine(RuleBasedStateMachine):
    """Blocks come, are computed and go; a search of all of them must agree with the index."""

    def __init__(self) -> None:
        super().__init__()
        self.hits = PartialHits()
        self.fresh: dict[int, tuple[bytes, list[int]]] = {}
        self.known: dict[int, tuple[bytes, list[int]]] = {}
        self.count = 0

    @rule(
        parent=st.sampled_from([PARENT, b"q" * 16]),
        tokens=st.lists(st.integers(0, 2), min_size=4, max_size=4),
    )
    def add(self, parent: bytes, tokens: list[int]) -> None:
        if (parent, tokens) in [*self.fresh.values(), *self.known.values()]:
            return
        self.count += 1
        self.fresh[self.count] = parent, tokens
        self.hits.add(self.count, place(KEY, parent, tokens))

    @rule()
    def settle(self) -> None:
        self.hits.settle()
        self.known |= self.fresh
        self.fresh = {}

    @precondition(lambda self: self.fresh or self.known)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.fresh | self.known)))
        self.hits.drop(block)
        self.fresh.pop(block, None)
        self.known.pop(block, None)

    @rule(
        parent=st.sampled_from([PARENT, b"q" * 16]),
        tokens=st.lists(st.integers(0, 2), min_size=1, max_size=4),
    )
    def look(self, parent: bytes, tokens: list[int]) -> None:
        found = self.hits.longest(place(KEY, parent, tokens))
        lengths = {b: common(t, tokens) for b, (p, t) in self.known.items() if p == parent}
        best = max(lengths.values(), default=0)
        assert (found[1] if found else 0) == best
        if found:
            assert lengths[found[0]] == best

    @invariant()
    def index_is_sound(self) -> None:
        self.hits.check(set(self.fresh | self.known))


TestPartialHitsMachine = PartialHitsMachine.TestCase
TestPartialHitsMachine.settings = settings(max_examples=scaled(80), stateful_step_count=40)
