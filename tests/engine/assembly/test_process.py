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
import zmq.asyncio
from msgspec import structs

from engine.api import EngineError, EngineRequest, TokenDelta
from engine.assembly.process import ProcessEngine
from engine.config import EngineConfig
from engine.serve.messages import Failed, Loading, encode
from engine.serve.supervisor import RemoteEngine
from tests.engine.model.test_model import save_model
from tests.engine.simulation import make_request

PROMPT = [5, 6, 7, 8, 9]


def config(folder: Path) -> EngineConfig:
    """Of the model in a test's folder. What was measured of the machine is kept for all tests."""
    return EngineConfig(
        model_path=str(folder),
        device="cpu",
        dtype="float32",
        kv_memory_bytes=8 << 20,
        threads=1,
        cache_dir=str(folder.parent),
    )


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[ProcessEngine]:
    save_model("llama", tmp_path)
    engine = ProcessEngine(config(tmp_path))
    await engine.start()
    yield engine
    pid = engine.pid
    await engine.close()
    assert pid is not None
    assert not psutil.pid_exists(pid), "closing leaves no process behind"


async def test_killed_in_the_middle_of_32_streams_it_comes_back_and_finishes_each_as_if_undisturbed(
    engine: ProcessEngine,
) -> None:
    async def run(request: EngineRequest, started: asyncio.Event) -> list[TokenDelta]:
        deltas = []
        async for delta in engine.generate(request):
            deltas.append(delta)
            if len(deltas) == 3 + len(request.prompt):
                started.set()
        return deltas

    async def run_all(kill: bool) -> list[list[TokenDelta]]:
        started = [asyncio.Event() for _ in range(32)]
        runs = asyncio.gather(*map(run, requests(), started))
        if kill:
            await asyncio.gather(*(event.wait() for event in started))
            assert engine.pid is not None
            os.kill(engine.pid, signal.SIGKILL)
        return await asyncio.wait_for(runs, 120)

    undisturbed = await run_all(kill=False)
    first_pid = engine.pid
    rebuilt = await run_all(kill=True)
    assert engine.pid != first_pid
    assert await engine.wait_started(1) == 2
    assert all(deltas[-1].finish_reason == "length" for deltas in rebuilt)
    assert list(map(tokens, rebuilt)) == list(map(tokens, undisturbed))
    assert len({tuple(tokens(deltas)) for deltas in rebuilt}) > 16, "the streams differ"
    # Some linger for one more step, to leave a full block to the next turn.
    for _ in range(100):
        stats = await engine.stats()
        if not stats.running:
            break
    assert stats.running == stats.waiting == stats.blocks_in_use == 0


async def test_it_comes_back_with_the_memory_that_it_had_however_little_is_free_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Poorer(ProcessEngine):
        program = "tests.engine.serve.poorer"

    free = tmp_path / "free"
    monkeypatch.setenv("FREE_MEMORY_FILE", str(free))
    save_model("llama", tmp_path)
    engine = Poorer(structs.replace(config(tmp_path), kv_memory_bytes=None))
    free.write_text(str(256 << 20))
    await engine.start()
    try:
        first = engine.info
        free.write_text("0")
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
        assert await asyncio.wait_for(engine.wait_started(1), 60) == 2
        assert engine.info.num_blocks == first.num_blocks > 1
    finally:
        await engine.close()


async def test_killed_in_the_middle_of_seeded_samples_it_finishes_each_as_if_undisturbed(
    engine: ProcessEngine,
) -> None:
    def sampled(num_sequences: int, *stops: int) -> EngineRequest:
        request = make_request("n", PROMPT, 60)
        sampling = structs.replace(
            request.sampling, temperature=1.0, seed=11, stop_token_ids=stops, presence_penalty=0.5
        )
        return structs.replace(request, sampling=sampling, num_sequences=num_sequences)

    async def run(request: EngineRequest, kill_after: int | None = None) -> list[list[int]]:
        lines: list[list[int]] = [[] for _ in range(request.num_sequences)]
        ends: list[int] = []
        async for delta in engine.generate(request):
            assert delta.index not in ends
            lines[delta.index] += delta.token_ids
            if delta.finish_reason is not None:
                assert delta.error is None
                ends.append(delta.index)
            if kill_after is not None and sum(map(len, lines)) >= kill_after:
                assert engine.pid is not None
                os.kill(engine.pid, signal.SIGKILL)
                kill_after = None
        assert sorted(ends) == list(range(request.num_sequences))
        assert kill_after is None
        return lines

    free = await run(sampled(4))
    assert len(set(map(tuple, free))) == 4
    assert free[0] == (await run(sampled(1)))[0]
    stops = sampled(4, free[2][9])  # so that at least one ends long before the others
    undisturbed = await run(stops)
    assert await asyncio.wait_for(run(stops, kill_after=80), 120) == undisturbed
    assert await engine.wait_started(1) == 2


async def test_a_process_that_hangs_is_killed_and_its_streams_go_on(tmp_path: Path) -> None:
    save_model("llama", tmp_path)
    engine = ProcessEngine(config(tmp_path), silence_seconds=1.0)
    await engine.start()
    request = make_request("r", PROMPT, 300)
    undisturbed = tokens([delta async for delta in engine.generate(request)])
    stopped = engine.pid
    generated: list[int] = []
    async for delta in engine.generate(request):
        if not generated:
            assert stopped is not None
            os.kill(stopped, signal.SIGSTOP)
        generated += delta.token_ids
    assert generated == undisturbed
    assert stopped != engine.pid
    assert stopped is not None
    assert not psutil.pid_exists(stopped)
    await engine.close()


class HangingEngine(ProcessEngine):
    """Its child gets as far as its libraries, or nowhere where there are none."""

    program = "tests.engine.serve.hanging"


async def test_a_child_that_hangs_while_it_loads_is_killed(tmp_path: Path) -> None:
    engine = HangingEngine(config(tmp_path), loading_seconds=2.0)
    with pytest.raises(EngineError, match="got no further for 2 seconds"):
        await engine.start()
    assert engine.pid is not None
    assert not psutil.pid_exists(engine.pid)
    await engine.close()


async def test_an_engine_that_the_system_kills_while_it_starts_is_told_so(tmp_path: Path) -> None:
    class Killed:
        async def wait(self) -> int:
            return -signal.SIGKILL

        def kill(self) -> None:
            pass

    async def launch(address: str) -> Killed:
        return Killed()

    engine = RemoteEngine(launch)
    with pytest.raises(EngineError, match=r"killed while starting.* where memory runs out; choose"):
        await engine.start()
    await engine.close()


async def test_a_slow_start_has_time_as_long_as_it_gets_further() -> None:
    peers: list[zmq.asyncio.Socket] = []
    gone = asyncio.Event()

    class Slow:
        async def wait(self) -> int:
            await gone.wait()
            return 0

        def kill(self) -> None:
            gone.set()

    async def load(address: str) -> None:
        peers.append(zmq.asyncio.Context.instance().socket(zmq.PAIR))
        peers[0].connect(address)
        for stage in range(5):
            await peers[0].send(encode(Loading(str(stage))))
            await asyncio.sleep(0.4)
        await peers[0].send(encode(Failed("that was all")))

    loading: list[asyncio.Task[None]] = []

    async def launch(address: str) -> Slow:
        loading.append(asyncio.create_task(load(address)))
        return Slow()

    engine = RemoteEngine(launch, loading_seconds=1.5)
    with pytest.raises(EngineError, match="that was all"):
        await engine.start()
    await loading[0]
    gone.set()
    peers[0].close(linger=0)
    await engine.close()


def requests() -> list[EngineRequest]:
    """Greedy ones, seeded ones, and some with penalties that look back over the output."""
    plain = [make_request(str(i), PROMPT[: 1 + i % 5], 60) for i in range(32)]
    return [
        structs.replace(
            request,
            sampling=structs.replace(
                request.sampling,
                stop_token_ids=(),
                temperature=(0.0, 1.0)[i % 2],
                seed=i,
                frequency_penalty=(0.0, 0.5)[i % 4 // 2],
            ),
        )
        for i, request in enumerate(plain)
    ]


def tokens(deltas: list[TokenDelta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


async def test_an_engine_that_cannot_start_says_why_without_a_traceback(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    save_model("llama", tmp_path)
    engine = ProcessEngine(structs.replace(config(tmp_path), kv_memory_bytes=1))
    with pytest.raises(EngineError, match="kv_memory: a single block takes"):
        await engine.start()
    await engine.close()
    assert "Traceback" not in capfd.readouterr().err


def test_the_engine_dies_with_its_service(tmp_path: Path) -> None:
    save_model("llama", tmp_path)
    script = (
        "import asyncio, os, signal, sys\n"
        "from engine.config import EngineConfig\n"
        "from engine.assembly.process import ProcessEngine\n"
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
