"""The engine in a process of its own, so that neither side's work delays the other's loop."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import signal
import sys
from pathlib import Path

import msgspec
import zmq

from engine.api import EngineBroken, EngineError
from engine.config import EngineConfig
from engine.logs import log_process
from engine.serve.messages import Failed, Loading, encode
from engine.serve.supervisor import RemoteEngine, RunningEngine
from engine.system.late_compiler import import_late
from engine.system.secrecy import forbid_core_dumps, without_secrets
from engine.system.threads import thread_environment

_PR_SET_PDEATHSIG = 1


class ProcessEngine(RemoteEngine):
    """An engine in a child process, which dies with its parent however that dies."""

    program = "engine.assembly.process"
    """The child's module; see its `main`."""

    def __init__(
        self,
        config: EngineConfig,
        rebuild_seconds: float = 60.0,
        silence_seconds: float = 120.0,
        loading_seconds: float = 900.0,
        cadence_seconds: float = 0.0,
    ) -> None:
        super().__init__(
            self._spawn, rebuild_seconds, silence_seconds, loading_seconds, cadence_seconds
        )
        self._config = config

    @property
    def pid(self) -> int | None:
        """The child's process id, while there is one."""
        return self._engine.pid if isinstance(self._engine, _Child) else None

    @property
    def is_halted(self) -> bool:
        """Whether a signal has stopped the child, so that it cannot answer before another one."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] == "T"

    async def _spawn(self, address: str) -> RunningEngine:
        command = [sys.executable, "-m", self.program, address, str(os.getpid())]
        process = await asyncio.create_subprocess_exec(
            *command,
            msgspec.json.encode(self._next_config()).decode(),
            env=without_secrets(os.environ) | thread_environment(self._config.threads),
            stdin=asyncio.subprocess.DEVNULL,
        )
        return _Child(process)

    def _next_config(self) -> EngineConfig:
        """An engine that takes another's place has as much KV memory, whatever is free just now:
        what the dead one had may not be yet, and requests that fitted are to fit again.
        """
        first = self._first_info
        if first is None or self._config.kv_memory_bytes is not None:
            return self._config
        size = first.num_blocks * first.block_bytes
        return msgspec.structs.replace(self._config, kv_memory_bytes=size)


class _Child:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid

    async def wait(self) -> int:
        return await self._process.wait()

    def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()


def die_with(parent_pid: int) -> None:
    """Ask the kernel to end this process with its parent."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        sys.exit("the service is gone")


def main() -> None:
    """The child: `python -m engine.assembly.process ADDRESS PARENT_PID CONFIG_JSON`."""
    address, parent_pid, config_json = sys.argv[1:]
    die_with(int(parent_pid))
    # Ctrl-C reaches the whole terminal; the service decides when the engine stops.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    config = msgspec.json.decode(config_json, type=EngineConfig)
    if not config.core_dumps:
        forbid_core_dumps()
    log_process("engine", config.log_format, config.log_level, sys.stderr)
    socket = zmq.Context().socket(zmq.PAIR)
    socket.set_hwm(0)
    socket.connect(address)
    # The heavy imports come late: a bad command line should fail at once. They leave half a million
    # objects for good, which the garbage collector would look through again and again.
    gc.disable()
    import_late("torch._dynamo")
    from engine.assembly.assemble import load_core
    from engine.serve.kv_events import make_publisher
    from engine.serve.loop import serve

    gc.freeze()
    gc.enable()

    def tell(what: str) -> None:
        socket.send(encode(Loading(what)))

    tell("libraries")
    try:
        core = load_core(config, tell)
        publisher = make_publisher(core.config, core.scheduler.tiers)
    except Exception as error:
        reason = str(error)
        if not isinstance(error, EngineError):  # what an operator can mend needs no traceback
            logging.getLogger(__name__).exception("the engine could not start")
            reason = f"{type(error).__name__}: {error}"
        socket.send(encode(Failed(reason)))
        socket.close(linger=1000)
        sys.exit(1)
    gc.collect()
    gc.freeze()
    try:
        serve(core, socket, publisher)
    except EngineBroken:
        logging.getLogger(__name__).exception("the engine gives up; its process ends")
        sys.exit(1)
    finally:
        socket.close(linger=0)
        if publisher is not None:
            publisher.close()


if __name__ == "__main__":
    main()
