"""OpenTelemetry: where the time of each request went, for a collector that is sent it over HTTP.

A request is a span with the attributes of OpenTelemetry's conventions for generative AI; its
children are `admission`, `queue`, `prefill` and `decode`, and within these `restore` and `rebuild`.
All are made at its end, from times that are known anyway, and sent by a thread of the SDK's, which
drops what the collector does not take. They belong to the trace that the client names
(https://www.w3.org/TR/trace-context). What was said is in none of them.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from app.generation.generation import Generation
from app.observe.request_fields import RequestContext, current_request

_OPERATIONS = {"/v1/completions": "text_completion"}
_EXPORT_SECONDS = 5.0


class Tracing:
    """Follows generations of the model of this id, and tells of them when they end."""

    def __init__(self, endpoint: str, model_id: str) -> None:
        """`endpoint` is the collector's base URL, such as http://127.0.0.1:4318."""
        self._model_id = model_id
        own = {"service.name": os.environ.get("OTEL_SERVICE_NAME", "partywall")}
        self._provider = TracerProvider(resource=Resource.create(own), shutdown_on_exit=False)
        url = f"{endpoint.rstrip('/')}/v1/traces"
        exporter = OTLPSpanExporter(url, timeout=_EXPORT_SECONDS)
        # Of every attempt while the collector is away; what is lost is an error of its own.
        logging.getLogger("opentelemetry.exporter").setLevel(logging.ERROR)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("partywall")
        self._propagator = TraceContextTextMapPropagator()

    @contextmanager
    def following(self, generation: Generation) -> Iterator[None]:
        """Tell of a generation that runs while this is entered."""
        origin = current_request()
        try:
            yield
        finally:
            self._tell(generation, origin)

    def close(self) -> None:
        """Send what is left, unless the collector takes too long. For a thread of its own."""
        sending = threading.Thread(target=self._provider.shutdown, daemon=True)
        sending.start()
        sending.join(_EXPORT_SECONDS)

    def _tell(self, generation: Generation, origin: RequestContext | None) -> None:
        operation = "chat" if origin is None else _OPERATIONS.get(origin.path, "chat")
        clock = _Clock()
        timeline = generation.timeline
        span = self._tracer.start_span(
            f"{operation} {self._model_id}",
            context=self._propagator.extract({} if origin is None else origin.trace),
            kind=SpanKind.SERVER,
            attributes=_attributes(generation, operation, self._model_id, origin),
            start_time=clock.ns(timeline.asked),
        )
        if generation.outcome == "error":
            error = generation.failure
            span.set_attribute("error.type", "_OTHER" if error is None else error.code)
            span.set_status(Status(StatusCode.ERROR))
        if span.is_recording():
            self._tell_parts(generation, span, clock)
        span.end(clock.ns(clock.now))

    def _tell_parts(self, generation: Generation, whole: Span, clock: _Clock) -> None:
        timeline, end = generation.timeline, clock.now
        first = end if timeline.first_token is None else timeline.first_token
        queued = first
        if timeline.queue_seconds is not None:
            queued = min(first, timeline.started + timeline.queue_seconds)
        parts = [
            ("admission", timeline.asked, timeline.started),
            ("queue", timeline.started, queued),
        ]
        if timeline.queue_seconds is not None:
            parts.append(("prefill", queued, first))
        if timeline.first_token is not None:
            parts.append(("decode", first, end))
        for name, start, stop in parts:
            part = self._child(name, whole, clock.ns(start))
            for pause in timeline.pauses:
                if start < pause.ended <= stop and name in ("prefill", "decode"):
                    within = self._child(pause.kind, part, clock.ns(max(start, pause.began)))
                    within.end(clock.ns(pause.ended))
            part.end(clock.ns(stop))

    def _child(self, name: str, parent: Span, start_ns: int) -> Span:
        context = trace.set_span_in_context(parent)
        return self._tracer.start_span(name, context=context, start_time=start_ns)


def _attributes(
    generation: Generation, operation: str, model_id: str, origin: RequestContext | None
) -> dict[str, AttributeValue]:
    """By OpenTelemetry's conventions for generative AI; what these lack is under `partywall`."""
    request, timeline = generation.request, generation.timeline
    sampling = request.sampling
    found: dict[str, AttributeValue | None] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "partywall",
        "gen_ai.request.model": model_id,
        "gen_ai.request.choice.count": request.num_outputs,
        "gen_ai.request.max_tokens": sampling.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.response.model": model_id,
        "gen_ai.response.id": request.request_id,
        "gen_ai.response.finish_reasons": [line.end for line in generation.lines if line.end],
        "gen_ai.response.time_to_first_chunk": timeline.time_to_first_token,
        "gen_ai.usage.input_tokens": len(request.prompt),
        "gen_ai.usage.output_tokens": generation.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": generation.cached_tokens,
        "gen_ai.usage.cache_creation.input_tokens": generation.cache_write_tokens,
        "gen_ai.usage.reasoning.output_tokens": generation.reasoning_tokens,
        "partywall.tenant": request.tenant,
        "partywall.finish": generation.outcome or "abandoned",
        "partywall.request_id": None if origin is None else origin.id,
        "partywall.key": None if origin is None else origin.key,
        "url.path": None if origin is None else origin.path,
    }
    return {name: value for name, value in found.items() if value is not None}


class _Clock:
    """What `perf_counter` has told, as nanoseconds since 1970, which all processes agree on."""

    def __init__(self) -> None:
        self.now = perf_counter()
        self._now_ns = time.time_ns()

    def ns(self, seconds: float) -> int:
        return self._now_ns + int((seconds - self.now) * 1e9)
