"""Random requests, what becomes of their prompts, and mutations of them."""

from __future__ import annotations

import random
import string
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from engine.api import EngineInfo, EngineRequest, TokenDelta
from tests.app.conftest import CHATML, MODEL, World
from tests.app.pooled_engine import PooledEngine

EFFORT_FIRST = (
    "{% if reasoning_effort %}{{ '<|im_start|>system\nEffort: ' + reasoning_effort + '\n' }}"
    "{% endif %}"
) + CHATML
Body = dict[str, Any]


class Engine(PooledEngine):
    """Another model's, where `other` is set, as far as the service can tell."""

    other = False

    @property
    def info(self) -> EngineInfo:
        info = msgspec.structs.replace(super().info, has_grammars=True)
        return msgspec.structs.replace(info, hash_extras=b"other") if self.other else info

    def generate(self, request: EngineRequest) -> AsyncIterator[TokenDelta]:
        # There is no model to be held to a grammar.
        return super().generate(msgspec.structs.replace(request, grammar=None))


class Asker:
    """Asks random things, and keeps the prompts that came of them."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.rng = random.Random(seed)

    def text(self, least: int = 20, most: int = 60) -> str:
        count = self.rng.randint(least, most)
        return "".join(self.rng.choices(string.ascii_lowercase + " ", k=count))

    def body(self) -> Body:
        """A request, whose conversation nobody has had before."""
        said = [{"role": "user", "content": self.text()}]
        for _ in range(self.rng.randint(0, 2)):
            said += [
                {"role": "assistant", "content": self.text()},
                {"role": "user", "content": self.text()},
            ]
        return {
            "instructions": self.text(40, 80),
            "input": said,
            "tools": [self.tool()],
            "reasoning": {"effort": "low"},
            "prompt_cache_key": self.text(4, 8),
            "safety_identifier": self.text(4, 8),
        }

    def tool(self) -> Body:
        name = "".join(self.rng.choices(string.ascii_lowercase, k=8))
        return {"type": "function", "name": name, "description": self.text()}

    async def ask(self, body: Body, beside: str | None = None, **options: Any) -> Body:
        """The response as JSON."""
        if beside is not None:
            options["comparison_response_id"] = beside
        if options:
            body = body | {"prompt_cache_options": options}
        client = self.world.client()
        body = {"model": MODEL, "max_output_tokens": 4} | body
        response = await client.responses.create(**body)
        return dict(response.model_dump())

    @property
    def prompt(self) -> list[int]:
        return list(self.world.engine.requests[-1].prompt)


def other(text: str) -> str:
    """The text with another character in it."""
    at = len(text) // 2
    return f"{text[:at]}{'x' if text[at] != 'x' else 'y'}{text[at + 1 :]}"


def with_other_input(body: Body, asker: Asker) -> Body:
    said = [dict(one) for one in body["input"]]
    one = asker.rng.choice(said)
    one["content"] = other(one["content"])
    return body | {"input": said}


def with_other_instructions(body: Body, _: Asker) -> Body:
    return body | {"instructions": other(body["instructions"])}


HARMLESS: dict[str, Any] = {
    "": lambda body, _: body,
    "text_format_changed": lambda body, _: body | {"text": {"format": {"type": "json_object"}}},
    "verbosity_changed": lambda body, _: body | {"text": {"verbosity": "low"}},
    "service_tier_changed": lambda body, _: body | {"service_tier": "flex"},
}
"""What no prompt here is made of: whoever changes it finds all the same."""


def count(few: int) -> Any:
    """So many mutations in `make test`, and fifty in all."""
    cases = [pytest.param(range(few), id="few")]
    cases.append(pytest.param(range(few, 50), id="fifty", marks=pytest.mark.exhaustive))
    return pytest.mark.parametrize("seeds", cases)
