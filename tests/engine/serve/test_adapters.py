"""Adapters come to an engine through its client, though one is lost on its way."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from msgspec import structs

from engine.api import EngineError, EngineUnavailable
from engine.assembly.assemble import load_core
from engine.serve.local import LocalEngine
from tests.engine.adapters.peft_models import Made, make_adapter
from tests.engine.model.states import config_of, saved
from tests.engine.simulated_model import random_prompt
from tests.engine.simulation import make_request

PROMPT = random_prompt(random.Random(1), 20)


def source(made: Made, fails: Callable[[int], Exception | None]) -> tuple[object, list[bytes]]:
    """Brings it, but for what `fails` says of each attempt, behind half of it; and the attempts."""
    attempts: list[bytes] = []

    async def bring(name: bytes) -> AsyncIterator[bytes]:
        attempts.append(name)
        yield (made.folder / "adapter_config.json").read_bytes()
        data = (made.folder / "adapter_model.safetensors").read_bytes()
        yield data[: len(data) // 2]
        failure = fails(len(attempts))
        if failure is not None:
            raise failure
        yield data[len(data) // 2 :]

    return bring, attempts


@pytest.mark.parametrize("failure", [None, EngineUnavailable("lost"), EngineError("deleted")])
async def test_what_is_lost_on_its_way_is_brought_again_from_its_beginning(
    failure: Exception | None, tmp_path: Path
) -> None:
    model = saved("llama", tmp_path / "model")
    made = make_adapter(model, tmp_path / "1", 1)
    engine = LocalEngine(lambda: load_core(config_of(tmp_path / "model", 200, 0)))
    await engine.start()
    bring, attempts = source(made, lambda attempt: failure if attempt == 1 else None)
    engine.source = bring  # type: ignore[assignment]
    request = structs.replace(make_request("r", PROMPT, 12), adapter=made.use(PROMPT))
    deltas = [delta async for delta in engine.generate(request)]
    if isinstance(failure, EngineUnavailable) or failure is None:
        assert [one for delta in deltas for one in delta.token_ids] == made.says(model, PROMPT, 12)
        assert attempts == [made.name] * (1 if failure is None else 2)
        (loaded,) = (await engine.stats()).adapters
        assert loaded.name == made.name
        assert 0 < loaded.seconds < 60
    else:
        assert deltas[-1].error == "the adapter cannot be used: deleted"
        assert attempts == [made.name]
        assert not (await engine.stats()).adapters
    await engine.close()
