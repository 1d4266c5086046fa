import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator

import pytest
from msgspec import structs

from engine.api import EngineError, EngineStats, EngineUnavailable, RequestRefused, TokenDelta
from engine.serve.local import LocalEngine
from engine.serve.messages import Deltas
from tests.engine.clock import at_a_models_pace
from tests.engine.simulated_model import expected_output
from tests.engine.simulation import make_request, simulated_core

PROMPT = [5, 6, 7, 8, 9]


@pytest.fixture
async def engine() -> AsyncIterator[LocalEngine]:
    engine = LocalEngine(lambda: at_a_models_pace(simulated_core(num_blocks=256)))
    await engine.start()
    yield engine
    await engine.close()


async def collect(engine: LocalEngine, name: str, max_tokens: int = 20) -> list[int]:
    request = make_request(name, PROMPT, max_tokens)
    return [token async for delta in engine.generate(request) for token in delta.token_ids]


async def idle_stats(engine: LocalEngine) -> EngineStats:
    """What the engine counts once nothing runs."""
    for _ in range(500):
        stats = await engine.stats()
        if stats.running == stats.waiting == 0:
            return stats
        await asyncio.sleep(0.01)
    raise AssertionError("the engine did not become idle")


async def test_many_requests_at_once_each_get_their_own_tokens(engine: LocalEngine) -> None:
    results = await asyncio.gather(*(collect(engine, str(i), 10 + i) for i in range(20)))
    assert results == [expected_output(PROMPT, 10 + i) for i in range(20)]
    stats = await idle_stats(engine)
    assert (stats.blocks_in_use, stats.invariant_violations) == (0, 0)


async def test_leaving_the_iteration_frees_the_blocks(engine: LocalEngine) -> None:
    async with contextlib.aclosing(engine.generate(make_request("r", PROMPT, 900))) as deltas:
        await anext(deltas)
    stats = await idle_stats(engine)
    assert stats.blocks_in_use == 0
    assert stats.output_tokens < 450, "it was not computed to its end"


async def test_a_cancelled_reader_frees_the_blocks(engine: LocalEngine) -> None:
    task = asyncio.create_task(collect(engine, "r", 900))
    for _ in range(500):
        if (await engine.stats()).output_tokens:
            break
        await asyncio.sleep(0.001)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    stats = await idle_stats(engine)
    assert stats.blocks_in_use == 0
    assert stats.output_tokens < 450, "it was not computed to its end"


async def test_abort_ends_the_stream_with_a_terminal_delta(engine: LocalEngine) -> None:
    deltas = engine.generate(make_request("r", PROMPT, 900))
    await anext(deltas)
    await engine.abort("r")
    await engine.abort("unknown")
    rest = [delta async for delta in deltas]
    assert rest[-1].finish_reason == "aborted"


async def test_abort_ends_one_sequence_or_all_that_are_left_once_each(engine: LocalEngine) -> None:
    request = structs.replace(make_request("r", PROMPT, 200), num_sequences=4)
    deltas = engine.generate(request)
    ends = {}
    await anext(deltas)
    await engine.abort("r", 2)
    async for delta in deltas:
        if delta.finish_reason is not None:
            assert delta.index not in ends
            ends[delta.index] = delta.finish_reason
        if delta.finish_reason is not None and delta.index == 2:
            await engine.abort("r", 2)
            await engine.abort("r")
    assert ends == dict.fromkeys(range(4), "aborted")
    assert (await idle_stats(engine)).blocks_in_use == 0


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "param"),
    [
        ([], 5, "prompt"),
        ([5], 2000, "max_tokens"),
        ([5] * 2000, 1, "prompt"),
        ([5, 100_000], 1, "prompt"),
        ([5, -1], 1, "prompt"),
        ([5], -1, "max_tokens"),
    ],
)
async def test_a_request_that_can_never_fit_is_refused_at_the_door(
    engine: LocalEngine, prompt: list[int], max_tokens: int, param: str
) -> None:
    with pytest.raises(RequestRefused) as refusal:
        await anext(engine.generate(make_request("r", prompt, max_tokens)))
    assert refusal.value.param == param


async def test_a_request_id_in_use_is_refused(engine: LocalEngine) -> None:
    first = engine.generate(make_request("same", PROMPT, 900))
    await anext(first)
    with pytest.raises(EngineError, match="in use"):
        await anext(engine.generate(make_request("same", PROMPT, 5)))
    await first.aclose()


async def test_closing_ends_running_requests_and_refuses_new_ones() -> None:
    engine = LocalEngine(lambda: at_a_models_pace(simulated_core()))
    await engine.start()
    deltas = engine.generate(make_request("r", PROMPT, 200))
    await anext(deltas)
    await engine.close()
    assert [delta async for delta in deltas][-1].finish_reason == "aborted"
    with pytest.raises(EngineUnavailable):
        await engine.stats()
    with pytest.raises(EngineUnavailable):
        await anext(engine.generate(make_request("r", PROMPT)))


async def test_deltas_that_were_read_leave_nothing_to_the_garbage_collector(
    engine: LocalEngine,
) -> None:
    gc.collect()
    gc.disable()
    try:
        await asyncio.gather(*(collect(engine, str(number)) for number in range(4)))
        await idle_stats(engine)
        left = [one for one in gc.get_objects() if type(one) in (TokenDelta, Deltas)]
    finally:
        gc.enable()
    assert not left


async def test_pins_and_tenants_are_let_go_through_the_client(engine: LocalEngine) -> None:
    warm = make_request("warm", [5] * 9, 0, pin="a/p")
    assert [delta.finish_reason async for delta in engine.generate(warm)] == ["length"]
    assert (await engine.stats()).blocks_pinned == 2
    await engine.unpin("a/p")
    await engine.unpin("unknown")
    stats = await engine.stats()
    assert (stats.blocks_pinned, stats.blocks_cached) == (0, 3)
    await engine.forget_tenant("a")
    stats = await engine.stats()
    assert (stats.blocks_cached, stats.tenants) == (0, {})
