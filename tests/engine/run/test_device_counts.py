"""Penalties from counts that the device keeps; here that is the CPU, and the door plain torch."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch

from engine.batch.staging import Array
from engine.run import device_counts
from engine.run.device_counts import DeviceCounts, token_counts
from engine.run.penalties import TokenCounts
from engine.sequences.plan import Draw
from engine.sequences.sequence import Sequence
from tests.engine.run.test_sampler import VOCAB, logits, sequence

CPU = torch.device("cpu")


def newest_of(draws: list[Draw]) -> torch.Tensor:
    return torch.tensor([(draw.sequence.token_ids + list(draw.drafts))[-1] for draw in draws])


def some_sequence(rng: random.Random) -> Sequence:
    return sequence(
        rng.choices(range(VOCAB), k=5),
        rng.choices(range(VOCAB), k=rng.randrange(3)),
        repetition_penalty=rng.choice([1.0, 1.7, 0.6]),
        frequency_penalty=rng.choice([0.0, 0.4, -1.0]),
        presence_penalty=rng.choice([0.0, 0.7]),
        logit_bias={rng.randrange(VOCAB): 1.5} if rng.random() < 0.3 else {},
    )


def test_scores_are_those_of_the_host_whatever_comes_goes_and_forks() -> None:
    """To the last bit, so that a GPU draws what a CPU draws."""
    rng, counts = random.Random(5), DeviceCounts()
    running: list[Sequence] = []
    for step in range(300):
        if rng.random() < 0.3 and len(running) < 12:
            running.append(some_sequence(rng))
        if running and rng.random() < 0.2:
            running.append(rng.choice(running).fork())
        if rng.random() < 0.2:
            running = rng.sample(running, len(running) * 2 // 3)
        if running and rng.random() < 0.1:  # it is preempted, or undone
            again = rng.choice(running)
            again.token_ids = again.token_ids[: rng.randint(5, len(again.token_ids))]
        drafted = rng.choice(running) if running and rng.random() < 0.3 else None
        draws = []
        for one in rng.sample(running, max(1, len(running) - 1)) if running else []:
            guesses = tuple(rng.choices(range(VOCAB), k=2)) if one is drafted else ()
            draws += [Draw(one, guesses[:end]) for end in range(len(guesses) + 1)]
        scores = logits(step, len(draws))
        expected = TokenCounts().adjust(scores, draws, None)
        found = counts.adjust(scores, draws, newest_of(draws) if rng.random() < 0.9 else None)
        assert torch.equal(found, expected)
        for one in running:
            for token in rng.choices(range(VOCAB), k=rng.choice([0, 1, 1, 1, 1, 3])):
                one.append(token)


def uploaded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many numbers each step brings to the device."""
    sizes: list[int] = []
    upload = device_counts.upload

    def counting(arrays: list[Array], device: torch.device) -> list[torch.Tensor]:
        sizes.append(sum(array.size for array in arrays))
        return upload(arrays, device)

    monkeypatch.setattr(device_counts, "upload", counting)
    return sizes


def test_a_step_brings_nothing_that_was_counted_before(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, counts = uploaded(monkeypatch), DeviceCounts()
    rng = random.Random(1)
    one = sequence(rng.choices(range(VOCAB), k=500), [3], frequency_penalty=1.0)
    one.sampling = sequence([1], [], repetition_penalty=1.2).sampling
    for step in range(30):
        draws = [Draw(one)]
        counts.adjust(logits(step), draws, newest_of(draws))
        one.append(rng.randrange(VOCAB))
    assert sizes[0] > 500, "its prompt, once"
    assert set(sizes[1:]) == {6}, "three numbers, a slot, and the newest token's place and row"


def test_a_token_that_only_the_device_knows_is_counted() -> None:
    counts, one = DeviceCounts(), sequence([1], [5, 5], frequency_penalty=1.0)
    scores = logits(1)
    draws = [Draw(one)]
    counts.adjust(scores, draws, newest_of(draws))
    one.num_drawn = 1
    found = counts.adjust(scores, draws, torch.tensor([9]))
    one.num_drawn = 0
    one.append(9)
    assert torch.equal(found, TokenCounts().adjust(scores, draws, None))


def test_beams_copy_counts_and_bring_no_tokens_again(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, counts = uploaded(monkeypatch), DeviceCounts()
    beams = [sequence([1] * 400, [2], repetition_penalty=1.3)]
    rng = random.Random(2)
    for step in range(20):
        draws = list(map(Draw, beams))
        scores = logits(step, len(draws))
        found = counts.adjust(scores, draws, newest_of(draws))
        assert torch.equal(found, TokenCounts().adjust(scores, draws, None))
        assert len(counts) == len(beams)
        beams = [rng.choice(beams).fork() for _ in range(4)]
        for one in beams:
            one.append(rng.randrange(VOCAB))
    assert max(sizes[1:]) < 40
    assert len(counts._table) == 8


def test_a_table_holds_what_the_sequences_of_one_step_have() -> None:
    counts = DeviceCounts()
    rows = [sequence([1, 2], [3, 3, index], repetition_penalty=2.0) for index in range(20)]
    draws = list(map(Draw, rows))
    counts.adjust(logits(1, 20), draws, newest_of(draws))
    for one in rows:
        expected = Counter(one.token_ids[2:])
        codes = counts._table[counts._counted[one].place]
        assert {t: int(c) >> 1 for t, c in enumerate(codes) if c >> 1} == expected
        assert [t for t, c in enumerate(codes) if c & 1] == [1, 2]
    scores = logits(2)
    assert counts.adjust(scores, [Draw(sequence([1], [2]))], None) is scores
    assert len(counts) == 0


def test_a_cpu_counts_on_the_host() -> None:
    assert isinstance(token_counts(CPU), TokenCounts)
    assert isinstance(token_counts(torch.device("cuda")), DeviceCounts)
