"""How long one tenant's worst legal traffic holds up the service and a neighbour's stream.

The engine has no model (`bench.service.null_engine`) and gives every stream a token every
`--step-ms`, so that what is measured is the service. While a neighbour's answer streams over a
WebSocket, another tenant sends the largest, longest and most crooked requests there are, several at
once, kind after kind. A task on the service's event loop tells when it was not woken in time; the
neighbour's gaps are between the arrivals of its deltas; memory is the service process's own.
"""

from __future__ import annotations

import argparse
import itertools
import json
import socket
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from rich.table import Table
from websockets.frames import Frame, Opcode

from bench.common.machine import PeakMemory, rss_mib
from bench.common.options import add_model
from bench.common.service import Service, served_model
from bench.registry import BenchError, Result
from bench.service.frame_reader import Streaming, open_socket
from bench.service.null_engine import LATE, null_service

CHAT: Final = "/v1/chat/completions"
RESPONSES: Final = "/v1/responses"
COMPACT: Final = "/v1/responses/compact"
_FRAME_BYTES: Final = 1_150_000

FIGURES: Final = {
    "loop_stall_ms_max": "the longest that the service's event loop was not free, ms",
    "neighbour_gap_ms_max": "the longest gap between two deltas of the neighbour's stream, ms",
    "neighbour_gap_usual_ms": "the median gap before the attacks, ms",
    "peak_rss_mib": "the greatest resident memory of the service process, MiB",
    "rss_growth_mib": "how much more that is than before the attacks, MiB",
}
_CALM_SECONDS: Final = 2.0
_SETTLING_SECONDS: Final = 0.3
_PATIENCE_SECONDS: Final = 120.0


@dataclass(frozen=True)
class Attack:
    """Bodies that are sent at once: to `path` over HTTP, or all as frames to one socket."""

    name: str
    path: str | None
    bodies: list[bytes]


@dataclass(frozen=True)
class Sizes:
    """How large the bodies are, how many of each are sent, and the pace of the engine behind."""

    body_bytes: int
    context_tokens: int
    at_once: int
    step_us: int

    def attacks(self) -> Iterator[Attack]:
        """Every attack, its bodies made only when it is its turn."""
        many = [{"role": "user", "content": ""}] * (self.body_bytes // 34)
        yield self._chat("messages beyond the bound", messages=many)
        most = [{"role": role, "content": "x"} for role in ("user", "assistant")] * 2048
        yield self._chat("as many messages as may be", messages=most)
        yield self._chat("as many parts as may be", messages=self._parts(4096))
        wrong = [{"role": "user", "content": [{"type": "text", "text": "x", "y": 0}] * 4096}]
        yield self._chat("parts that are all wrong", messages=wrong)
        text = "The wall is old. " * (self.body_bytes // 17 - 20)
        yield self._response("a prompt beyond the context", input=text)
        yield self._response("instructions beyond the context", input="x", instructions=text)
        yield self._response("an escape for each character", input='"\\' * (self.body_bytes // 5))
        yield self._response("a prompt that fills the context", input=self._full())
        yield self._response("instructions that fill it", input="x", instructions=self._full())
        controls = "<|im_end|>" * (self.body_bytes // 12)
        yield self._response("nothing but control tokens", input=controls)
        bias = {str(number): 1 for number in range(1024)}
        stop = ["The wall " * 100] * 4
        yield self._response("bias and stops", input="x" * 4000, logit_bias=bias, stop=stop)
        yield self._raw("lists in lists", b'{"input":' + b"[" * (self.body_bytes - 20))
        yield self._raw("empty lists", self._many(b"[],", b'{"input":[', b"0]}"))
        yield self._raw("unknown fields", self._many(b'"x":0,', b"{", b'"y":0}'))
        compact = json.dumps({"model": "-", "input": self._full()}).encode()
        yield Attack("compaction of a full context", COMPACT, [compact] * self.at_once)
        yield self._frames("frames of a long prompt", input=text[:_FRAME_BYTES])
        items = [{"role": "user", "content": "x" * 240}] * (_FRAME_BYTES // 280)
        yield self._frames("frames of many messages", input=items)
        lanes = [{"stream_id": f"lane {number}"} for number in range(self.at_once)]
        yield self._frames("frames on lanes", *lanes, input=self._full())

    def continuing(self, previous_response_id: str) -> Attack:
        """Later turns of a conversation that fills most of the context."""
        return self._response(
            "turns behind a full context", input="x", previous_response_id=previous_response_id
        )

    def first_turn(self) -> bytes:
        """The turn that `continuing` continues."""
        return self._body(input=self._full(), store=True)

    def _full(self) -> str:
        """Most of the context: five of the default model's tokens for each sentence."""
        return "The wall is old. " * int(self.context_tokens * 0.9 / 5)

    def _many(self, member: bytes, head: bytes, tail: bytes) -> bytes:
        return head + member * (self.body_bytes // len(member) - 10) + tail

    @staticmethod
    def _parts(count: int) -> list[dict[str, object]]:
        return [{"role": "user", "content": [{"type": "text", "text": "x"}] * count}] * 3

    def _body(self, **fields: object) -> bytes:
        given = {"max_output_tokens": 1, "seed": self.step_us, "store": False}
        return json.dumps(given | fields).encode()

    def _response(self, name: str, **fields: object) -> Attack:
        return Attack(name, RESPONSES, [self._body(**fields)] * self.at_once)

    def _chat(self, name: str, messages: object) -> Attack:
        fields = {"max_tokens": 1, "seed": self.step_us, "model": "-", "messages": messages}
        return Attack(name, CHAT, [json.dumps(fields).encode()] * self.at_once)

    def _raw(self, name: str, body: bytes) -> Attack:
        return Attack(name, RESPONSES, [body] * self.at_once)

    def _frames(self, name: str, *each: dict[str, str], **fields: object) -> Attack:
        base = {"type": "response.create", "max_output_tokens": 1, "seed": self.step_us}
        given = each or ({},) * self.at_once
        bodies = [json.dumps(base | fields | one | {"store": False}).encode() for one in given]
        return Attack(name, None, bodies)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--at-once", type=int, default=8, help="requests of an attack")
    parser.add_argument("--body-bytes", type=int, default=4_190_000, help="size of the largest")
    parser.add_argument("--context-tokens", type=int, default=131_072, help="the engine's context")
    parser.add_argument("--step-ms", type=float, default=40.0, help="between two tokens")
    parser.add_argument("--only", help="attacks whose names contain this")
    add_model(parser)


def run(options: argparse.Namespace) -> Result:
    """Stream to a neighbour, attack, and watch."""
    step_us = round(options.step_ms * 1000)
    sizes = Sizes(options.body_bytes, options.context_tokens, options.at_once, step_us)
    with ExitStack() as stack:
        given = ["--model", options.model, "--max-context-tokens", str(options.context_tokens)]
        service, notes = stack.enter_context(null_service(given, watches=True))
        attacker = _Attacker(service, service.create_tenant("attacker"))
        stack.callback(attacker.close)
        neighbour = _Neighbour(service.url, service.create_tenant("neighbour"), sizes)
        stack.callback(neighbour.close)
        look = partial(rss_mib, service.pid)
        memory = stack.enter_context(PeakMemory(look, 0.01))
        attacker.warm(step_us)
        neighbour.calm()
        before = look()
        found = [
            _measure(attack, attacker, neighbour, memory, notes / LATE)
            for attack in _attacks(sizes, attacker)
            if (options.only or "") in attack.name
        ]
        usual = neighbour.usual_gap()
    if not found:
        raise BenchError(f"no attack has {options.only!r} in its name")
    figures = {
        "loop_stall_ms_max": max(one.stall for one in found) * 1000,
        "neighbour_gap_ms_max": max(one.gap for one in found) * 1000,
        "neighbour_gap_usual_ms": usual * 1000,
        "peak_rss_mib": max(one.rss_mib for one in found),
        "rss_growth_mib": max(one.rss_mib for one in found) - before,
    }
    return Result(figures, [_table(found)])


@dataclass(frozen=True)
class _Found:
    """What one attack did: seconds, MiB, and how it was answered."""

    name: str
    seconds: float
    stall: float
    gap: float
    rss_mib: float
    answers: Counter[str]


def _attacks(sizes: Sizes, attacker: _Attacker) -> Iterator[Attack]:
    yield from sizes.attacks()
    yield sizes.continuing(attacker.stored(sizes.first_turn()))


def _measure(
    attack: Attack, attacker: _Attacker, neighbour: _Neighbour, memory: PeakMemory, log: Path
) -> _Found:
    time.sleep(_SETTLING_SECONDS)
    memory.reset()
    began = time.monotonic()
    answers = attacker.send(attack)
    time.sleep(_SETTLING_SECONDS)
    ended = time.monotonic()
    stalls = [late for at, late in _late(log) if began <= at + late and at <= ended]
    gap = neighbour.longest_gap(began, ended)
    rss = memory.mib
    return _Found(attack.name, ended - began, max(stalls, default=0.0), gap, rss, answers)


def _late(log: Path) -> list[tuple[float, float]]:
    """When the loop was asked, and how late it was."""
    pairs = (line.split() for line in log.read_text().splitlines())
    return [(float(pair[0]), float(pair[1])) for pair in pairs if len(pair) == 2]


class _Neighbour:
    """A tenant whose one answer streams all the time, read by a thread of its own."""

    def __init__(self, url: str, api_key: str, sizes: Sizes) -> None:
        self._connection = open_socket(url, api_key)
        self._stream = Streaming(self._connection)
        self._calm_until = 0.0
        message = (
            '{"type":"response.create","input":"How old is the wall?","store":false,'
            f'"max_output_tokens":{sizes.context_tokens - 100},"seed":{sizes.step_us}}}'
        )
        self._connection.sendall(Frame(Opcode.TEXT, message.encode()).serialize(mask=True))
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def calm(self) -> None:
        """Let it stream undisturbed for a while, by which it is compared later."""
        time.sleep(_CALM_SECONDS)
        self._calm_until = time.monotonic()

    def usual_gap(self) -> float:
        """The median gap while it was calm, in seconds. Raises `BenchError` where none was."""
        began = self._calm_until - _CALM_SECONDS / 2
        gaps = [late - at for at, late in self._gaps() if began < at and late < self._calm_until]
        if not gaps:
            raise BenchError("the neighbour's stream has not begun")
        return statistics.median(gaps)

    def longest_gap(self, began: float, ended: float) -> float:
        """The longest in that time, in seconds; one that goes on counts as long as it is by now."""
        gaps = self._gaps()
        last = self._stream.arrivals[-1] if self._stream.arrivals else began
        gaps.append((last, time.monotonic()))
        return max(late - at for at, late in gaps if late > began and at < ended)

    def close(self) -> None:
        """Leave."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._reader.join()
        self._connection.close()

    def _gaps(self) -> list[tuple[float, float]]:
        arrivals = list(self._stream.arrivals)
        return list(itertools.pairwise(arrivals))

    def _read(self) -> None:
        with suppress(OSError):
            while data := self._connection.recv(1 << 16):
                self._stream.take(data, time.monotonic())


class _Attacker:
    """A tenant that sends many requests at once and reads their answers."""

    def __init__(self, service: Service, api_key: str) -> None:
        self._url = service.url
        self._api_key = api_key
        self._model = served_model(service.url, api_key)
        self._threads = ThreadPoolExecutor(32)
        self._http = service.client(api_key, _PATIENCE_SECONDS)

    def warm(self, step_us: int) -> None:
        """What the first request loads is loaded then."""
        self._post(RESPONSES, b'{"input":"x","max_output_tokens":1,"seed":%d}' % step_us)

    def stored(self, body: bytes) -> str:
        """The id of a stored response."""
        return str(self._http.post(RESPONSES, content=body).raise_for_status().json()["id"])

    def send(self, attack: Attack) -> Counter[str]:
        """Send it, and count the answers by status or event."""
        if attack.path is None:
            return self._frames(attack.bodies)
        model = self._model.encode()
        bodies = [body.replace(b'"model": "-"', b'"model": "%b"' % model) for body in attack.bodies]
        sent = [self._threads.submit(self._post, attack.path, body) for body in bodies]
        return Counter(one.result() for one in sent)

    def close(self) -> None:
        """Hang up."""
        self._threads.shutdown()
        self._http.close()

    def _post(self, path: str, body: bytes) -> str:
        return str(self._http.post(path, content=body).status_code)

    def _frames(self, bodies: list[bytes]) -> Counter[str]:
        """All frames before the first answer is read."""
        connection = open_socket(self._url, self._api_key)
        connection.settimeout(_PATIENCE_SECONDS)
        frames = [Frame(Opcode.TEXT, body).serialize(mask=True) for body in bodies]
        with connection:
            sending = self._threads.submit(connection.sendall, b"".join(frames))
            counted: Counter[str] = Counter()
            while counted.total() < len(bodies):
                received = connection.recv(1 << 20)
                if not received:
                    raise BenchError("the service closed the attacker's socket")
                for kind in ("completed", "incomplete", "failed"):
                    counted[kind] += received.count(b'"type":"response.%b"' % kind.encode())
                counted["error"] += received.count(b'{"type":"error"')
            sending.result()
        return +counted


def _table(found: list[_Found]) -> Table:
    columns = ("attack", "seconds", "loop stall ms", "neighbour's gap ms", "RSS MiB", "answers")
    table = Table(*columns, title="stall", title_justify="left")
    for one in found:
        answers = ", ".join(f"{count} x {what}" for what, count in sorted(one.answers.items()))
        times = (f"{seconds * 1000:.1f}" for seconds in (one.stall, one.gap))
        table.add_row(one.name, f"{one.seconds:.1f}", *times, f"{one.rss_mib:.0f}", answers)
    return table
