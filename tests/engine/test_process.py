"""The engine in its own process, with a real (tiny) model: it lives, dies and comes back."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from engine.client import EngineError
from engine.config import EngineConfig
from engine.process import ProcessEngine
from tests.engine.simulation import make_request
from tests.engine.test_model import generate, save_model

PROMPT = [5, 6, 7, 8, 9]


def config(folder: Path) -> EngineConfig:
    return EngineConfig(
        model_path=str(folder), device="cpu", dtype="float32", kv_memory_bytes=8 << 20, threads=1
    )


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[ProcessEngine]:
    save_model("llama", tmp_path)
    engine = ProcessEngine(config(tmp_path))
    await engine.start()
    yield engine
    await engine.close()


async def test_it_serves_dies_fails_its_streams_and_comes_back(
    engine: ProcessEngine, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    expected = generate(AutoModelForCausalLM.from_pretrained(tmp_path), PROMPT, 12)

    async def collect(name: str) -> list[int]:
        deltas = engine.generate(make_request(name, PROMPT, 12))
        return [token async for delta in deltas for token in delta.token_ids]

    assert await collect("first") == expected
    running = [engine.generate(make_request(str(i), PROMPT, 400)) for i in range(3)]
    for deltas in running:
        await anext(deltas)
    first_pid = engine.pid
    assert first_pid is not None
    os.kill(first_pid, signal.SIGKILL)
    for deltas in running:
        assert [delta async for delta in deltas][-1].finish_reason == "error"
    assert await asyncio.wait_for(engine.wait_started(1), 60) == 2
    assert engine.pid != first_pid
    assert await collect("again") == expected
    stats = await engine.stats()
    assert stats.running == stats.waiting == 0


async def test_closing_leaves_no_process_behind(tmp_path: Path) -> None:
    save_model("llama", tmp_path)
    engine = ProcessEngine(config(tmp_path))
    await engine.start()
    pid = engine.pid
    await engine.close()
    assert pid is not None
    assert not psutil.pid_exists(pid)


async def test_an_engine_that_cannot_start_says_why(tmp_path: Path) -> None:
    engine = ProcessEngine(config(tmp_path / "nothing"))
    with pytest.raises(EngineError, match="nothing"):
        await engine.start()
    await engine.close()


def test_the_engine_dies_with_its_service(tmp_path: Path) -> None:
    save_model("llama", tmp_path)
    script = (
        "import asyncio, os, signal, sys\n"
        "from engine.config import EngineConfig\n"
        "from engine.process import ProcessEngine\n"
        "async def main():\n"
        "    engine = ProcessEngine(EngineConfig(model_path=sys.argv[1], device='cpu',\n"
        "        dtype='float32', kv_memory_bytes=8 << 20, threads=1))\n"
        "    await engine.start()\n"
        "    print(engine.pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert result.returncode == -signal.SIGKILL, result.stderr
    engine = int(result.stdout)
    for _ in range(100):
        if not psutil.pid_exists(engine):
            break
        signal.sigtimedwait([], 0.1)
    assert not psutil.pid_exists(engine)
