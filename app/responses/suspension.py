"""What a stream needs to go on in another process: its events, and its request with the answer."""

from __future__ import annotations

import msgspec

from app.generate.generation import Generation
from app.prompt.turns import Prompt
from app.responses.answer import Answer
from app.wire.events import ResponseResource, TokenLogprob
from engine.api import EngineRequest


class SuspendedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A response that a restart interrupts.

    `request.generated` holds every token of the answer so far, and `events` every event that they
    made; `None` is the event that told of the restart, which is never told again. `engine` is what
    tokens and KV depend on: elsewhere the answer cannot go on.
    """

    engine: bytes
    request: EngineRequest
    prompt: Prompt
    end_user: str | None
    stop: list[str]
    cached_tokens: int
    resource: ResponseResource
    item_id: str | None
    logprobs: list[TokenLogprob]
    held: list[TokenLogprob]
    events: list[bytes | None]

    @classmethod
    def of(
        cls,
        answer: Answer,
        generation: Generation,
        *,
        prompt: Prompt,
        end_user: str | None,
        engine: bytes,
        events: list[bytes | None],
    ) -> SuspendedRun:
        """What a generation that has just been suspended can go on from."""
        line = generation.line
        return cls(
            engine=engine,
            request=msgspec.structs.replace(generation.request, generated=[line.output_ids]),
            prompt=prompt,
            end_user=end_user,
            stop=list(generation.stop),
            cached_tokens=generation.cached_tokens,
            resource=answer.resource,
            item_id=answer.item_id,
            logprobs=answer.logprobs,
            held=line.held,
            events=[*events, None],
        )

    @classmethod
    def decode(cls, blob: bytes) -> SuspendedRun:
        """What `encode` made."""
        return msgspec.msgpack.decode(blob, type=cls)

    @property
    def answer(self) -> Answer:
        """The response as it was before the restart was told."""
        return Answer(self.resource, self.item_id, self.logprobs)

    def encode(self) -> bytes:
        """As the store keeps it."""
        return msgspec.msgpack.encode(self)
