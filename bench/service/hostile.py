"""The worst that a client may send, for `bench stall`: bodies and frames of the greatest sizes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

CHAT: Final = "/v1/chat/completions"
RESPONSES: Final = "/v1/responses"
COMPACT: Final = "/v1/responses/compact"
_FRAME_BYTES: Final = 1_150_000


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
