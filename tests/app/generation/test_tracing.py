"""Traces, as a collector gets them over HTTP."""

from __future__ import annotations

import gzip
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import httpx
import pytest
from msgspec import structs
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from transformers import PreTrainedTokenizerBase

from app.generation.tracing import Tracing
from engine.api import EngineRequest, TokenDelta
from tests.app.conftest import MODEL, World
from tests.app.scripted_engine import ScriptedEngine

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SECRET = "marzipan"


class Collector:
    """Takes what is posted to it."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                is_packed = self.headers.get("content-encoding") == "gzip"
                assert self.path == "/v1/traces"
                collector.bodies.append(gzip.decompress(body) if is_packed else body)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def spans(self) -> dict[str, Span]:
        """All so far, by their names."""
        return {
            span.name: span
            for body in self.bodies
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        }


class PausedEngine(ScriptedEngine):
    """One whose second delta has waited in the queue, and later ones for other reasons."""

    pauses: dict[int, dict[str, float]]

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__(tokenizer)
        self.pauses = {}

    async def generate(self, request: EngineRequest) -> AsyncIterator[TokenDelta]:
        number = 0
        async for delta in super().generate(request):
            yield structs.replace(delta, **self.pauses.get(number, {}))
            number += 1


@pytest.fixture
def engine(tokenizer: PreTrainedTokenizerBase) -> ScriptedEngine:
    return PausedEngine(tokenizer)


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


@pytest.fixture
def tracing(collector: Collector) -> Iterator[Tracing]:
    tracing = Tracing(collector.url, MODEL)
    yield tracing
    tracing.close()


async def ask(world: World, tracing: Tracing, flags: str = "01") -> httpx.Response:
    """A request in a client's trace; its spans are at the collector afterwards."""
    headers = world.headers() | {"traceparent": f"00-{TRACE}-{PARENT}-{flags}"}
    async with httpx.AsyncClient(base_url=world.base_url, headers=headers) as http:
        answer = await http.post("/v1/responses", json={"input": SECRET})
    tracing.close()
    return answer


def attributes(span: Span) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for one in span.attributes:
        kind = one.value.WhichOneof("value")
        value = getattr(one.value, kind)
        found[one.key] = (
            [each.string_value for each in value.values] if kind == "array_value" else value
        )
    return found


async def test_a_request_is_a_span_of_the_clients_trace_with_its_parts_within(
    world: World, tracing: Tracing, collector: Collector
) -> None:
    answer = (await ask(world, tracing)).json()
    spans = collector.spans
    whole = spans.pop(f"chat {MODEL}")
    assert (whole.trace_id.hex(), whole.parent_span_id.hex()) == (TRACE, PARENT)
    assert whole.kind == Span.SPAN_KIND_SERVER
    assert list(spans) == ["admission", "queue", "decode"], "this engine tells of no waiting"
    times = [whole.start_time_unix_nano]
    for part in spans.values():
        assert (part.trace_id, part.parent_span_id) == (whole.trace_id, whole.span_id)
        assert part.start_time_unix_nano == times[-1]
        times.append(part.end_time_unix_nano)
    assert times == sorted(times)
    assert times[-1] == whole.end_time_unix_nano
    told = attributes(whole)
    assert told["gen_ai.operation.name"] == "chat"
    assert told["gen_ai.response.id"] == answer["id"]
    assert told["gen_ai.response.finish_reasons"] == ["stop"]
    assert told["gen_ai.usage.input_tokens"] == answer["usage"]["input_tokens"]
    assert told["gen_ai.usage.output_tokens"] == answer["usage"]["output_tokens"]
    assert told["partywall.tenant"] == world.tenants["acme"].id
    assert not any(SECRET.encode() in body for body in collector.bodies)


async def test_waiting_is_told_apart(
    world: World, tracing: Tracing, collector: Collector, engine: PausedEngine
) -> None:
    engine.token_seconds = 0.002
    engine.pauses = {
        0: {"waited_seconds": 1e-5},
        3: {"waited_seconds": 1e-3},
        5: {"waited_seconds": 1e-3, "rebuilt_seconds": 1.5e-3},
    }
    await ask(world, tracing)
    spans = collector.spans
    assert list(spans) == [
        "admission",
        "queue",
        "prefill",
        "restore",
        "rebuild",
        "decode",
        f"chat {MODEL}",
    ]
    for name, seconds in (("queue", 1e-5), ("restore", 1e-3), ("rebuild", 1.5e-3)):
        span = spans[name]
        lasted = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
        assert lasted == pytest.approx(seconds, abs=1e-6)
    assert spans["restore"].parent_span_id == spans["decode"].span_id
    assert spans["rebuild"].parent_span_id == spans["decode"].span_id
    assert spans["prefill"].start_time_unix_nano == spans["queue"].end_time_unix_nano


async def test_what_an_answer_waited_for_another_engine_is_counted_once_it_goes_on(
    world: World, tracing: Tracing, engine: PausedEngine
) -> None:
    def read(name: str) -> float | None:
        registry = world.app.state.service.metrics.registry
        found: float | None = registry.get_sample_value(
            f"partywall_request_move_time_seconds_{name}", {"tenant": world.tenants["acme"].id}
        )
        return found

    await ask(world, tracing)
    assert read("count") == 0
    engine.pauses = {3: {"rebuilt_seconds": 1.5}}
    await ask(world, tracing)
    assert (read("count"), read("sum")) == (1, 1.5)
    engine.pauses, engine.die_after = {2: {"rebuilt_seconds": 9.0}}, 2
    assert (await ask(world, tracing)).status_code == 500
    assert read("count") == 1  # nobody went on with it


async def test_a_failure_is_told_by_its_code(
    world: World, tracing: Tracing, collector: Collector, engine: PausedEngine
) -> None:
    engine.die_after = 2
    assert (await ask(world, tracing)).status_code == 500
    whole = collector.spans[f"chat {MODEL}"]
    assert whole.status.code == Status.STATUS_CODE_ERROR
    assert attributes(whole)["error.type"] == "server_error"
    assert attributes(whole)["partywall.finish"] == "error"


async def test_a_trace_that_its_client_does_not_record_is_not_sent(
    world: World, tracing: Tracing, collector: Collector
) -> None:
    assert (await ask(world, tracing, flags="00")).status_code == 200
    assert collector.bodies == []
