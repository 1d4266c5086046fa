"""Tokens of one step may be shown one by one, so that nobody sees how many they were."""

import asyncio

import pytest

from engine.api import TokenDelta, TokenLogprobs
from engine.serve.running_stream import Cadence, RunningStream
from tests.engine.simulation import make_request


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def delta(*token_ids: int, index: int = 0, **fields: object) -> TokenDelta:
    return TokenDelta(request_id="r", index=index, token_ids=list(token_ids), **fields)  # type: ignore[arg-type]


def shown(cadence: Cadence, clock: Clock, seconds: float) -> list[list[int]]:
    """What is shown within so many seconds from now on."""
    end, found = clock.now + seconds, []
    while cadence and clock.now + cadence.seconds_left() <= end:
        clock.now += cadence.seconds_left()
        found.append(cadence.pop().token_ids)
    clock.now = end
    return found


def test_without_a_cadence_deltas_come_at_once_and_whole() -> None:
    clock = Clock()
    cadence = Cadence(0.0, clock)
    cadence.push(delta(4, 5, 6))
    cadence.push(delta(7))
    assert shown(cadence, clock, 0.0) == [[4, 5, 6], [7]]


@pytest.mark.parametrize("steps", [[1] * 12, [3, 1, 4, 1, 3], [6, 6], [12]])
def test_a_reader_sees_the_same_pace_however_many_tokens_a_step_has(steps: list[int]) -> None:
    clock = Clock()
    cadence = Cadence(0.5, clock)
    seen: list[float] = []
    left = iter(range(12))
    start = clock.now
    for count in steps:
        cadence.push(delta(*(next(left) for _ in range(count))))
        for _ in range(int(count * 0.5 / 0.01)):  # no step takes longer than its tokens are shown
            seen += [clock.now - start for _ in shown(cadence, clock, 0.0)]
            clock.now += 0.01
    while cadence:
        seen += [clock.now - start for _ in shown(cadence, clock, 0.01)]
    assert seen == pytest.approx([0.5 * token for token in range(12)], abs=0.03)


def test_sequences_of_a_request_have_a_pace_of_their_own() -> None:
    clock = Clock()
    cadence = Cadence(1.0, clock)
    cadence.push(delta(4, 5, 6))
    cadence.push(delta(40, 50, index=1))
    assert shown(cadence, clock, 0.0) == [[4], [40]]
    assert shown(cadence, clock, 1.0) == [[5], [50]]
    assert shown(cadence, clock, 1.0) == [[6]]


def test_the_last_token_ends_the_sequence_and_each_has_its_log_probabilities() -> None:
    clock = Clock()
    cadence = Cadence(1.0, clock)
    logprobs = [TokenLogprobs(-0.5 * token, []) for token in range(3)]
    cadence.push(delta(4, 5, 6, logprobs=logprobs, finish_reason="stop"))
    parts = []
    while cadence:
        clock.now += cadence.seconds_left()
        parts.append(cadence.pop())
    assert [part.token_ids for part in parts] == [[4], [5], [6]]
    assert [part.finish_reason for part in parts] == [None, None, "stop"]
    assert [part.logprobs for part in parts] == [[one] for one in logprobs]
    assert clock.now == 102.0


def test_an_end_without_tokens_comes_behind_those_that_wait_and_no_later() -> None:
    clock = Clock()
    cadence = Cadence(1.0, clock)
    cadence.push(delta(4, 5))
    cadence.push(delta(finish_reason="aborted"))
    assert shown(cadence, clock, 1.0) == [[4], [5], []]


async def test_a_stream_shows_its_tokens_at_its_cadence_and_remembers_all_of_them() -> None:
    stream = RunningStream(make_request("r", [5], 8), cadence_seconds=0.02)
    loop = asyncio.get_running_loop()
    start = loop.time()
    stream.push(delta(4, 5))
    assert stream.resumption().generated == [[4, 5]]
    first = await stream.next()
    waiting = asyncio.create_task(stream.next())
    await asyncio.sleep(0)
    stream.push(delta(6, finish_reason="stop"))  # does not wake it before it is time
    second, third = await waiting, await stream.next()
    assert [one.token_ids for one in (first, second, third)] == [[4], [5], [6]]
    assert loop.time() - start >= 0.04
    assert stream.is_read
