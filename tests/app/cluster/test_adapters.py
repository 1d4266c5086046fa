"""Replicas on a real Ray cluster serve adapters, which doors bring them from the store."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from msgspec import structs
from transformers import PreTrainedModel

from engine.api import EngineError, EngineRequest, TokenDelta
from tests.app.cluster.running import eventually, is_empty, processes, run, wanted
from tests.engine.adapters.peft_models import PIECE_BYTES, Made, make_adapter
from tests.engine.model.test_model import generate, save_model
from tests.engine.simulated_model import random_prompt
from tests.engine.simulation import make_request

if TYPE_CHECKING:
    from app.cluster.door.client import ClusterEngine

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.exhaustive,
    pytest.mark.timeout(600),
]

TOKENS = 100
PROMPTS = [random_prompt(random.Random(seed), 30 + seed) for seed in range(3)]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[PreTrainedModel, Path]:
    folder = tmp_path_factory.mktemp("model")
    return save_model("llama", folder), folder


@pytest.fixture(scope="module")
def model(saved: tuple[PreTrainedModel, Path]) -> Path:
    return saved[1]


@pytest.fixture(scope="module")
def original(saved: tuple[PreTrainedModel, Path]) -> PreTrainedModel:
    return saved[0]


@pytest.fixture(scope="module")
def adapters(original: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> list[Made]:
    folder = tmp_path_factory.mktemp("adapters")
    return [make_adapter(original, folder / str(seed), seed, r=8) for seed in range(1, 7)]


class Store:
    """What a door reads adapters from, piece by piece."""

    def __init__(self, adapters: list[Made]) -> None:
        self.asked = Counter[bytes]()
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self._adapters = {one.name: one for one in adapters}

    async def bring(self, name: bytes) -> AsyncIterator[bytes]:
        self.asked[name] += 1
        if name not in self._adapters:
            raise EngineError("it was deleted")
        folder = self._adapters[name].folder
        yield (folder / "adapter_config.json").read_bytes()
        data = (folder / "adapter_model.safetensors").read_bytes()
        for start in range(0, len(data), PIECE_BYTES):
            yield data[start : start + PIECE_BYTES]
            await self.goes_on.wait()


@pytest_asyncio.fixture(loop_scope="module")
async def store(engine: ClusterEngine, adapters: list[Made]) -> AsyncIterator[Store]:
    before, store = engine.source, Store(adapters)
    engine.source = store.bring
    yield store
    engine.source = before


def asking(name: str, prompt: list[int], adapter: Made | None, tokens: int = 12) -> EngineRequest:
    use = None if adapter is None else adapter.use(prompt)
    return structs.replace(make_request(name, prompt, tokens), adapter=use)


async def answers(
    engine: ClusterEngine,
    label: str,
    adapters: list[Made],
    disturb: Callable[[], None] | None = None,
) -> dict[str, list[int]]:
    """To all prompts, with each adapter and without one, disturbed in their middle."""
    heard: list[TokenDelta] = []
    asked: dict[str, EngineRequest] = {}
    for at, prompt in enumerate(PROMPTS):
        for number, adapter in enumerate([None, *adapters]):
            name = f"{label} {at} {number}"
            asked[name] = asking(name, prompt, adapter, TOKENS)
    tasks = {name: asyncio.create_task(run(engine, one, heard)) for name, one in asked.items()}
    if disturb is not None:
        await eventually(lambda: len(heard) > 200)
        assert not all(task.done() for task in tasks.values())
        disturb()
    return {name.partition(" ")[2]: (await task)[0] for name, task in tasks.items()}


@pytest.fixture(scope="module")
def expected(original: PreTrainedModel, adapters: list[Made]) -> dict[str, list[int]]:
    """What PEFT's models say, which a single engine says as well."""
    said = {}
    for at, prompt in enumerate(PROMPTS):
        said[f"{at} 0"] = generate(original, prompt, TOKENS)
        for number, adapter in enumerate(adapters[:4], 1):
            said[f"{at} {number}"] = adapter.says(original, prompt, TOKENS)
    return said


async def test_replicas_say_what_each_adapter_says(
    engine: ClusterEngine, store: Store, adapters: list[Made], expected: dict[str, list[int]]
) -> None:
    assert engine.info.linears
    assert await answers(engine, "calm", adapters[:4]) == expected
    assert set(store.asked) == {one.name for one in adapters[:4]}
    await is_empty(engine)


def holders(engine: ClusterEngine, adapter: Made) -> list[int]:
    """Replicas that say that they have it loaded."""
    router = engine._fleet._router
    assert router is not None
    return [one for one, names in router.adapters._loaded.items() if adapter.name in names]


@pytest.mark.usefixtures("only_caches_count")
async def test_requests_go_where_their_adapter_is_loaded(
    engine: ClusterEngine, store: Store, adapters: list[Made], original: PreTrainedModel
) -> None:
    few = adapters[:3]
    for number, adapter in enumerate(few):
        await run(engine, asking(f"first {number}", PROMPTS[0], adapter), [])
        await eventually(lambda told=adapter: holders(engine, told))
    before = store.asked.total()
    rng = random.Random(1)
    for number in range(30):
        prompt = random_prompt(rng, 20)
        adapter = few[number % 3]
        said = await run(engine, asking(str(number), prompt, adapter), [])
        assert said[0] == adapter.says(original, prompt, 12)
    assert store.asked.total() == before


async def test_streams_of_a_killed_replica_go_on_with_their_adapters(
    engine: ClusterEngine, store: Store, adapters: list[Made], expected: dict[str, list[int]]
) -> None:
    kill = processes("ServeReplica:partywall")[0].kill
    assert await answers(engine, "killed", adapters[:4], kill) == expected
    await eventually(lambda: engine.num_ready == 3)
    await is_empty(engine)


async def test_an_adapter_whose_only_replica_is_killed_is_brought_to_another(
    engine: ClusterEngine, store: Store, adapters: list[Made], original: PreTrainedModel
) -> None:
    fresh, heard = adapters[4], list[TokenDelta]()
    request = asking("alone", PROMPTS[2], fresh, 400)
    running = asyncio.create_task(run(engine, request, heard))
    await eventually(lambda: len(heard) > 20)
    assert store.asked[fresh.name] == 1
    for one in processes("ServeReplica:partywall"):
        one.kill()
    assert (await running)[0] == fresh.says(original, PROMPTS[2], 400)
    assert store.asked[fresh.name] == 2
    await eventually(lambda: engine.num_ready == 3)
    await is_empty(engine)


async def test_an_adapter_that_a_door_takes_with_it_is_brought_by_the_next(
    engine: ClusterEngine,
    model: Path,
    store: Store,
    adapters: list[Made],
    original: PreTrainedModel,
) -> None:
    from app.cluster.door.client import ClusterEngine
    from app.cluster.node.deployment import Cluster

    class Guest(Cluster):
        """Leaves the connection with Ray, which is this process', to its host."""

        def close(self) -> None:
            pass

    async def at(door: ClusterEngine, name: str) -> list[int]:
        """What the replica that is called so answers."""
        there = next(one for one in door._fleet.ready if one.link._replica == name)
        request = asking(str(id(door)), PROMPTS[0], fresh)
        hashes = await door._hashes(request)
        deltas = [one async for one in door._generate(request, hashes, there)]
        return [token for one in deltas for token in one.token_ids]

    fresh, slow = adapters[5], Store(adapters)
    slow.goes_on.clear()
    second = ClusterEngine(Guest(wanted(model)), ready_seconds=60)
    second.source = slow.bring
    await second.start()
    await eventually(lambda: second.num_ready == 3)
    name = engine._fleet.ready[0].link._replica
    first_asked = asyncio.create_task(at(second, name))
    await eventually(lambda: slow.asked[fresh.name])
    answer = asyncio.create_task(at(engine, name))
    await asyncio.sleep(0.5)
    assert not answer.done()
    assert not store.asked[fresh.name], "another door is bringing it"
    await second.close()
    assert await answer == fresh.says(original, PROMPTS[0], 12)
    assert store.asked[fresh.name] == 1
    assert await first_asked == []
    await is_empty(engine)


async def test_an_adapter_that_there_is_not_ends_its_requests_alone(
    engine: ClusterEngine, store: Store, adapters: list[Made], original: PreTrainedModel
) -> None:
    unknown = Made(b"unknown", Path("nowhere"))
    base = asyncio.create_task(run(engine, make_request("base", PROMPTS[0], TOKENS), []))
    deltas = [one async for one in engine.generate(asking("unknown", PROMPTS[0], unknown))]
    assert deltas[-1].error == "the adapter cannot be used: it was deleted"
    assert (await base)[0] == generate(original, PROMPTS[0], TOKENS)
    await is_empty(engine)
