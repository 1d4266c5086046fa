"""What a stream needs to go on in another process: its events, and its request with the answer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from app.generation.generation import Asked, Generation
from app.prompt.conversation import Prompt
from app.prompt.sealing import encrypt_thought
from app.responses.render import ResponseRenderer
from app.wire.events import EncodedLogprob, ResponseResource
from app.wire.functions import Tools
from engine.api import EngineRequest
from tenants.records import Tenant


class SuspendedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A response that a restart interrupts.

    `request.generated` holds every token of the answer so far, and `events` every event that they
    made; `None` is the event that told of the restart, which is never told again. `engine` is what
    tokens and KV depend on: elsewhere the answer cannot go on.
    """

    engine: bytes
    request: EngineRequest
    prompt: Prompt
    stop: list[str]
    tools: Tools
    cached_tokens: int
    cache_write_tokens: int = 0
    resource: ResponseResource
    logprobs: list[list[bytes]]
    held: list[bytes]
    events: list[bytes | None]
    pads: bool = False
    input: bytes = b""
    seals: bool = False

    @classmethod
    def of(
        cls, renderer: ResponseRenderer, generation: Generation, events: Sequence[bytes | None]
    ) -> SuspendedRun:
        """What a generation that has just been suspended can go on from."""
        line = generation.line
        return cls(
            engine=generation.asked.engine_kind,
            request=msgspec.structs.replace(generation.request, generated=[line.output_ids]),
            prompt=generation.prompt,
            stop=list(generation.asked.stop),
            tools=generation.asked.tools,
            cached_tokens=generation.cached_tokens,
            cache_write_tokens=generation.cache_write_tokens,
            resource=renderer.resource,
            logprobs=[[bytes(one) for one in of_item] for of_item in renderer.logprobs],
            held=[bytes(one) for one in line.held],
            events=[*events, None],
            pads=renderer.pads,
            input=renderer.input,
            seals=renderer.seals,
        )

    @property
    def asked(self) -> Asked:
        """What the engine was asked, with the answer so far."""
        return Asked(
            request=self.request,
            prompt=self.prompt,
            stop=self.stop,
            engine_kind=self.engine,
            cached_tokens=self.cached_tokens,
            cache_write_tokens=self.cache_write_tokens,
            held=[EncodedLogprob(one) for one in self.held],
            tools=self.tools,
        )

    def renderer(self, tenant: Tenant) -> ResponseRenderer:
        """The tenant's response as it was before the restart was told."""
        logprobs = [[EncodedLogprob(one) for one in of_item] for of_item in self.logprobs]
        seal = partial(encrypt_thought, tenant) if self.seals else None
        return ResponseRenderer(
            self.resource, logprobs, pads=self.pads, input=self.input, seal=seal
        )
