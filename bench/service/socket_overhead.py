"""What the service itself costs: deltas a second on one core, and the latency that it adds.

The engine has no model (`bench.service.null_engine`) and emits a token for every stream at a fixed
pace, all streams of a step in one message, as the real one does; everything else is the service as
it is started by `partywall serve`: its process boundary, detokenizer, events, limits, metering and
WebSockets. It is pinned to one core, the engine to another, the clients to a third, or to the
engine's where there is none, and all of them go before other programs where that is allowed. The
pace is raised until the service falls behind. The added latency is measured at `--latency-rate`,
from the engine's emitting a step to a client's having the delta, on one clock; in turns with runs
as ordinary processes, whose slowest deltas wait for a processor wherever other programs run.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import psutil
from rich.table import Table

from bench.common.figures import percentile
from bench.common.machine import LoadWatch
from bench.common.options import add_model
from bench.common.service import Service
from bench.registry import BenchError, Result
from bench.service.frame_reader import Streaming, open_socket, stream_all
from bench.service.null_engine import EMITTED, Emitted, null_service

_PRIORITY = 1
"""The lowest of the real-time priorities: before every ordinary process."""

FIGURES: Final = {
    "deltas_per_s_per_core": "the fastest pace at which the service did not fall behind, the cores "
    "kept free for it (as parameter `undisturbed` tells), deltas/s",
    "latency_deltas_per_s": "the pace at which the latencies were measured: --latency-rate, unless "
    "the service falls behind at it, deltas/s",
    "added_ms_p50": "from a step's emission to a client's having its delta at that pace, the cores "
    "kept free for it, median, ms",
    "added_ms_p99": "the same, 99th percentile",
    "shared_ms_p50": "the same as ordinary processes, beside whatever else runs, median, ms",
    "shared_ms_p99": "the same, 99th percentile",
    "clients_late_ms_p99": "how long the bench's own clients had not looked when they found a "
    "delta, as ordinary processes, 99th percentile, ms",
    "cpu_us_per_delta": "processor time of the service for each delta, at that pace, "
    "starting and ending the answers included, us",
}
_FALLEN_BEHIND_SECONDS: Final = 0.05
"""A service that keeps up ends a run without a backlog; one that does not is later every second."""
_COARSE, _FINE = 1.25, 1.05
_PATIENCE_SECONDS: Final = 60.0
_IDLE_SECONDS: Final = 10.0


@contextmanager
def pinned(pid: int) -> Iterator[bool]:
    """The service on the first core, its children on the second, this process on the third or that.

    Nothing is pinned where there is one core. Threads that a process starts later stay with it.
    """
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        yield False
        return
    mine, others, *rest = sorted(before)
    for process in psutil.Process(pid).children(recursive=True):
        _each_thread(process.pid, lambda thread: os.sched_setaffinity(thread, {others}))
    _each_thread(pid, lambda thread: os.sched_setaffinity(thread, {mine}))
    os.sched_setaffinity(0, {rest[0] if rest else others})
    try:
        yield True
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def undisturbed(pid: int) -> Iterator[bool]:
    """The service, its children and this process wait for no ordinary process; whether they do.

    They have real-time priority (SCHED_RR), which takes root or CAP_SYS_NICE. The kernel leaves
    other processes a twentieth of a core even so.
    """
    processes = [pid, *(one.pid for one in psutil.Process(pid).children(recursive=True))]
    processes.append(os.getpid())
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(_PRIORITY))
    except PermissionError:
        yield False
        return
    try:
        _schedule(processes, os.SCHED_RR, _PRIORITY)
        yield True
    finally:
        _schedule(processes, os.SCHED_OTHER, 0)


def _schedule(processes: list[int], policy: int, priority: int) -> None:
    for one in processes:
        _each_thread(
            one, lambda thread: os.sched_setscheduler(thread, policy, os.sched_param(priority))
        )


def _each_thread(pid: int, act: Callable[[int], None]) -> None:
    """With all threads of a process, unless it has ended meanwhile, or they have."""
    with suppress(FileNotFoundError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(ProcessLookupError):
                act(int(thread.name))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--streams", type=int, default=64, help="sockets that stream at once")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each run")
    parser.add_argument("--first-rate", type=int, default=4000, help="deltas/s of the first run")
    parser.add_argument("--last-rate", type=int, default=100_000, help="deltas/s that suffice")
    parser.add_argument(
        "--rounds", type=int, default=5, help="runs that measure the latency, in each of two ways"
    )
    parser.add_argument("--latency-rate", type=int, default=10_000, help="deltas/s of these")
    add_model(parser)


def run(options: argparse.Namespace) -> Result:
    """Raise the pace until the service falls behind, then measure at a calmer one."""
    with ExitStack() as stack:
        service, notes = stack.enter_context(null_service(["--model", options.model]))
        is_pinned = stack.enter_context(pinned(service.pid))
        load = _Load(service, notes / EMITTED, options.streams, options.seconds)
        stack.callback(load.close)
        load.run(options.first_rate / 2)  # what the first requests load is loaded then
        if options.last_rate < options.first_rate:
            raise BenchError("--last-rate is below --first-rate")
        reached = _reach(load, options.first_rate, options.last_rate)
        pace = min(options.latency_rate, reached.deltas_per_s)
        in_turns = [(load.run(pace), load.run(pace, shared=True)) for _ in range(options.rounds)]
        alone, shared = zip(*in_turns, strict=True)
    figures = {
        "deltas_per_s_per_core": reached.deltas_per_s,
        "latency_deltas_per_s": statistics.median(one.deltas_per_s for one in alone),
        "added_ms_p50": statistics.median(one.added_ms(50) for one in alone),
        "added_ms_p99": statistics.median(one.added_ms(99) for one in alone),
        "shared_ms_p50": statistics.median(one.added_ms(50) for one in shared),
        "shared_ms_p99": statistics.median(one.added_ms(99) for one in shared),
        "clients_late_ms_p99": statistics.median(one.clients_late_ms for one in shared),
        "cpu_us_per_delta": statistics.median(one.cpu_s for one in alone) * 1e6,
    }
    told = {"pinned": is_pinned, "undisturbed": all(one.undisturbed for one in alone)}
    return Result(figures, [_table(load.runs[1:])], told)


@dataclass(frozen=True)
class _Run:
    """What came of one pace."""

    deltas_per_s: float
    """As the engine has emitted them while all streams ran."""
    added: list[float]
    """Seconds, of every delta, in the order in which they were emitted."""
    unseen: list[float]
    """Seconds for which each of them may have lain at the clients."""
    cpu_s: float
    """Processor time of the service for each delta."""
    foreign_percent: float
    undisturbed: bool

    @property
    def kept_up(self) -> bool:
        """Whether there was no backlog at the end."""
        last = self.added[len(self.added) * 3 // 4 :]
        return statistics.median(last) < _FALLEN_BEHIND_SECONDS

    def added_ms(self, percent: float) -> float:
        return percentile(self.added, percent) * 1000

    @property
    def clients_late_ms(self) -> float:
        return percentile(self.unseen, 99) * 1000


class _Load:
    """The clients: as many sockets as there are streams."""

    def __init__(self, service: Service, log: Path, streams: int, seconds: float) -> None:
        api_key = service.create_tenant("bench")
        self.runs: list[_Run] = []
        self._process = psutil.Process(service.pid)
        self._log = log
        self._seconds = seconds
        self._sockets = [open_socket(service.url, api_key) for _ in range(streams)]

    def run(self, deltas_per_s: float, shared: bool = False) -> _Run:
        """Stream at that pace for a while; then the answers end, one a step.

        Unless they are `shared`, the cores are kept free for it, as far as that is allowed.
        """
        period = len(self._sockets) / deltas_per_s
        tokens = max(2, round(self._seconds / period))
        body: dict[str, object] = {
            "input": "How old is the wall?",
            "seed": round(period * 1e6),
            "store": False,
        }
        lengths = [tokens + number for number in range(len(self._sockets))]
        bodies = (body | {"max_output_tokens": length} for length in lengths)
        used, watch = self._cpu_seconds(), LoadWatch()
        with nullcontext(False) if shared else undisturbed(self._process.pid) as is_undisturbed:
            streams = stream_all(self._sockets, bodies, self._seconds + _PATIENCE_SECONDS)
        used, foreign = self._cpu_seconds() - used, watch.foreign_percent()
        emitted = self._emitted(len(self.runs))
        deltas = sum(max(0, tokens - 1 - first) for first in emitted.first.values())
        pace = deltas / (emitted.steps[tokens - 1] - emitted.steps[0])
        added = _added(emitted, streams, lengths)
        unseen = [seconds for stream in streams for seconds in stream.unseen]
        self.runs.append(_Run(pace, added, unseen, used / len(added), foreign, is_undisturbed))
        return self.runs[-1]

    def close(self) -> None:
        """Close every socket."""
        for connection in self._sockets:
            connection.close()

    def _cpu_seconds(self) -> float:
        used = self._process.cpu_times()
        return used.user + used.system

    def _emitted(self, number: int) -> Emitted:
        """What the engine has noted of its run `number`."""
        deadline = time.monotonic() + _IDLE_SECONDS
        while True:
            lines = self._log.read_bytes().splitlines() if self._log.exists() else []
            if len(lines) > number:
                return msgspec.json.decode(lines[number], type=Emitted)
            if time.monotonic() > deadline:
                raise BenchError("the engine has not noted what it emitted")
            time.sleep(0.01)


def _added(emitted: Emitted, streams: Sequence[Streaming], lengths: Sequence[int]) -> list[float]:
    """The latency of every delta, in the order of emission."""
    found = []
    for stream, length in zip(streams, lengths, strict=True):
        if len(stream.arrivals) != length:
            raise BenchError(f"{len(stream.arrivals)} deltas came of {length} tokens")
        first = emitted.first[stream.response_id]
        made = emitted.steps[first : first + length]
        found += [(at, arrival - at) for at, arrival in zip(made, stream.arrivals, strict=True)]
    return [late for _, late in sorted(found)]


def _reach(load: _Load, first: float, last: float) -> _Run:
    """The fastest run that kept up: in coarse steps, then between the last two in fine ones."""
    best: _Run | None = None
    pace, step = first, _COARSE
    while pace <= last:
        found = load.run(pace)
        if not found.kept_up:
            found = load.run(pace)  # something else may have been in the way
        if found.kept_up:
            best = found
        elif best is None:
            raise BenchError(f"the service does not keep up with {first:.0f} deltas/s")
        elif step == _FINE:
            break
        else:
            pace, step = best.deltas_per_s, _FINE
        pace *= step
    assert best is not None
    return best


def _table(runs: Sequence[_Run]) -> Table:
    columns = ["deltas/s", "cores", "kept up", "added ms p50", "p99", "clients late ms p99"]
    columns += ["us a delta", "foreign load"]
    table = Table(*columns, title="socket-overhead", title_justify="left")
    for one in runs:
        added = (f"{one.added_ms(percent):.2f}" for percent in (50, 99))
        cores = "own" if one.undisturbed else "shared"
        kept = "yes" if one.kept_up else "no"
        rest = (f"{one.clients_late_ms:.2f}", f"{one.cpu_s * 1e6:.1f}")
        foreign = f"{one.foreign_percent:.0f} %"
        table.add_row(f"{one.deltas_per_s:,.0f}", cores, kept, *added, *rest, foreign)
    return table
