"""Guesses from the conversation and from earlier answers, and whose answers those may be."""

import random
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.draft.drafter import Draft
from engine.draft.lookup import AnswerHistory, PromptLookup, longest_match
from engine.sequences.sequence import Sequence
from engine.serve.core import EngineCore
from tests.engine.simulated_model import expected_output, random_prompt
from tests.engine.simulation import make_request, run_to_end, simulated_core


def sequence_of(prompt: list[int], output: Iterable[int] = (), **fields: object) -> Sequence:
    """A sequence that has come so far, as a scheduler makes it."""
    scheduler = simulated_core(num_blocks=4000).scheduler
    generated = [list(output)] if output else []
    scheduler.add(make_request("r", prompt, 5000, generated=generated, **fields))
    (sequence,) = scheduler.lifecycle.live["r"].sequences
    return sequence


def draft(lookup: PromptLookup, sequence: Sequence, most: int = 4) -> tuple[int, ...]:
    (found,) = lookup.propose([(sequence, most)], 1.0)
    assert len(found.token_ids) == len(found.levels) <= most
    return found.token_ids


def answered(lookup: PromptLookup, prompt: list[int], output: list[int], **fields: object) -> None:
    lookup.ended(sequence_of(prompt, output, **fields))


def test_what_followed_the_last_tokens_before_is_the_draft() -> None:
    lookup = PromptLookup()
    assert draft(lookup, sequence_of([5, 6, 7, 8, 9, 20, 5, 6])) == (7, 8, 9, 20)
    assert draft(lookup, sequence_of([5, 6, 7, 8, 9, 20], [5, 6])) == (7, 8, 9, 20)
    assert draft(lookup, sequence_of([5, 6, 7])) == ()


def test_a_longer_match_counts_more_than_a_newer_one_and_of_equals_the_newest() -> None:
    lookup = PromptLookup()
    assert draft(lookup, sequence_of([4, 5, 6, 70, 9, 5, 6, 80, 9, 4, 5, 6]), 1) == (70,)
    assert draft(lookup, sequence_of([4, 6, 70, 9, 4, 6, 80, 9, 4, 6]), 1) == (80,)


def test_what_repeats_is_drafted_on_and_on() -> None:
    lookup = PromptLookup()
    assert draft(lookup, sequence_of([9, 4, 5, 6, 4, 5, 6]), 8) == (4, 5, 6, 4, 5, 6, 4, 5)
    assert draft(lookup, sequence_of([9, 4, 4]), 5) == (4, 4, 4, 4, 4)


def test_a_draft_is_the_surer_the_longer_its_match_and_the_further_it_goes() -> None:
    lookup = PromptLookup()
    run = list(range(50, 80))
    levels = []
    for length in (1, 3, 9, 20):
        (found,) = lookup.propose(
            [(sequence_of([*run, 9, *run[10 - min(length, 10) : 10]]), 4)], 1.0
        )
        assert list(found.levels) == sorted(found.levels)
        levels.append(found.levels[0])
    assert levels == sorted(levels)
    assert len(set(levels)) > 2
    assert list(lookup.priors) == sorted(lookup.priors)


@given(
    tokens=st.lists(st.integers(4, 7), min_size=1, max_size=40),
    source=st.lists(st.integers(4, 7), max_size=60),
)
def test_the_longest_match_is_that_of_a_plain_search(tokens: list[int], source: list[int]) -> None:
    best = (0, 0)
    for end in range(1, len(source) + 1):
        length = 0
        while (
            length < min(len(tokens), end, 16) and source[end - 1 - length] == tokens[-1 - length]
        ):
            length += 1
        if length and length >= best[0]:
            best = (length, end)
    assert longest_match(np.array(tokens), np.array(source, np.int64)) == best


def test_a_growing_sequence_is_followed() -> None:
    rng = random.Random(1)
    lookup = PromptLookup()
    sequence = sequence_of(random_prompt(rng, 30))
    for _ in range(300):
        sequence.append(rng.randrange(4, 12))
        fresh = draft(PromptLookup(), sequence)
        assert draft(lookup, sequence) == fresh


def test_an_earlier_answer_of_the_same_namespace_is_found_and_no_other() -> None:
    lookup = PromptLookup()
    answered(lookup, [5, 6, 7], [80, 81, 82, 83], user="me")
    asked = [9, 5, 6, 7]
    assert draft(lookup, sequence_of(asked, user="me")) == (80, 81, 82, 83)
    assert draft(lookup, sequence_of([9], [30, 81], user="me")) == (82, 83)
    assert draft(lookup, sequence_of(asked, user="you")) == ()
    assert draft(lookup, sequence_of(asked)) == ()
    assert draft(lookup, sequence_of(asked, tenant="b", user="me")) == ()


def test_a_request_that_may_not_use_the_cache_neither_finds_answers_nor_leaves_one() -> None:
    lookup = PromptLookup()
    answered(lookup, [5, 6, 7], [80, 81], cache=False)
    assert draft(lookup, sequence_of([9, 5, 6, 7])) == ()
    answered(lookup, [5, 6, 7], [80, 81])
    assert draft(lookup, sequence_of([9, 5, 6, 7], cache=False)) == ()
    assert draft(lookup, sequence_of([9, 5, 6, 7])) == (80, 81)


def test_a_draft_ends_with_the_answer_it_is_from() -> None:
    lookup = PromptLookup()
    answered(lookup, [5, 6], [80, 81])
    answered(lookup, [7, 8], [90, 91, 92])
    assert draft(lookup, sequence_of([9, 80])) == (81,)
    assert draft(lookup, sequence_of([9, 7, 8])) == (90, 91, 92)


def test_a_tenants_answers_are_forgotten_with_it() -> None:
    lookup = PromptLookup()
    answered(lookup, [5, 6], [80, 81])
    answered(lookup, [5, 6], [90, 91], tenant="b")
    lookup.forget_tenant("a")
    assert draft(lookup, sequence_of([9, 5, 6])) == ()
    assert draft(lookup, sequence_of([9, 5, 6], tenant="b")) == (90, 91)


def test_the_oldest_answers_make_room_and_the_namespace_used_least_recently() -> None:
    history = AnswerHistory(namespace_tokens=8, most_tokens=20)
    history.add(b"a", "a", ([1], [2, 3, 4]))
    history.add(b"a", "a", ([5], [6, 7, 8]))
    assert history.of(b"a").tolist() == [2, 3, 4, -1, 5, 6, 7, 8]
    history.add(b"b", "b", ([1] * 3, [2] * 3))
    assert history.num_tokens == 15
    assert len(history.of(b"a")) == 8  # used again
    history.add(b"c", "c", ([1] * 3, [2] * 3))
    assert len(history.of(b"b")) == 0
    assert len(history.of(b"a")) == 8
    assert history.num_tokens == 15
    history.forget_tenant("a")
    assert history.num_tokens == 7


def steps_of(core: EngineCore, name: str, prompt: list[int], **fields: object) -> int:
    """How many steps a request takes that repeats what an earlier one has asked."""
    before = core.stats().steps
    core.submit(make_request(name, prompt, 60, **fields))
    assert run_to_end(core)[name] == expected_output(prompt, 60)
    return core.stats().steps - before


@pytest.mark.parametrize("runs_ahead", [False, True])
def test_an_answer_comes_faster_again_to_its_own_namespace_alone(runs_ahead: bool) -> None:
    core = simulated_core(num_blocks=400, speculation="lookup", runs_ahead=runs_ahead)
    prompt = next(
        prompt
        for seed in range(1000)
        if len(expected_output(prompt := random_prompt(random.Random(seed), 9), 60)) == 60
    )
    first = steps_of(core, "first", prompt, user="me")
    strangers = [
        steps_of(core, "other user", prompt, user="you"),
        steps_of(core, "other tenant", prompt, tenant="b", user="me"),
        steps_of(core, "tenant", prompt),
    ]
    again = steps_of(core, "again", prompt, user="me")
    assert again < first / 2
    assert min(strangers) >= first - 1
    uncached = steps_of(core, "uncached", prompt, user="me", cache=False)
    assert uncached >= first - 1


def test_nothing_to_go_by_is_no_draft() -> None:
    (found,) = PromptLookup().propose([(sequence_of([5]), 8)], 1.0)
    assert found == Draft()
