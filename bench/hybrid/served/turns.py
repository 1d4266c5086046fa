"""What turns find and how soon they answer, token by token in one process: no text, no server.

Eight chats of six turns behind four registered prompts, one turn of each chat after the other; and
the same new tokens without any history. Answers have a fixed length, whatever the model says.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Final

from engine.api import CachePolicy, EngineRequest, Namespaces, SamplingParams
from engine.assembly.assemble import load_core
from engine.config import EngineConfig
from engine.serve.core import EngineCore

_CHATS: Final = 8
_TURNS: Final = 6
_PROMPTS: Final = 4
_PROMPT_TOKENS: Final = 400
_SAID_TOKENS: Final = (20, 120)
"""Of one question, at least and at most."""
_ANSWER_TOKENS: Final = 16
_OPENING_TOKENS: Final = 3
"""Which a template writes before an answer."""
_KEYS: Final = b"shared".ljust(32, b"."), b"private".ljust(32, b".")


@dataclass(frozen=True)
class Turn:
    """What a turn has found of its prompt, and how long its first token took."""

    number: int
    prompt_tokens: int
    found_tokens: int
    seconds: float


def core_of(folder: Path, weights: str) -> EngineCore:
    """An engine of a folder, whose memory holds all chats."""
    quantize = "int8" if weights == "int8" else "none"
    return load_core(
        EngineConfig(
            model_path=str(folder),
            device="cpu",
            dtype="bfloat16",
            quantize=quantize,  # type: ignore[arg-type]
            kv_memory_bytes=4 << 30,
            max_context_tokens=4096,
        )
    )


def chats(core: EngineCore, seed: int) -> list[Turn]:
    """All turns of a round; what they say is drawn from `seed`."""
    draw, found = random.Random(seed), list[Turn]()
    said = {f"{seed} {chat}": _prompt(seed, chat % _PROMPTS) for chat in range(_CHATS)}
    for number in range(_TURNS):
        for name, tokens in said.items():
            tokens += _tokens(draw, draw.randint(*_SAID_TOKENS))
            answer, turn = _answered(core, f"{name} {number}", tokens, number)
            found.append(turn)
            tokens += answer
    return found


def without_history(core: EngineCore, seed: int, counts: list[int]) -> float:
    """Median seconds to the first token of prompts of so many tokens, which resemble no other."""
    draw = random.Random(f"{seed} alone")
    turns = (
        _answered(core, f"{seed} alone {number}", _tokens(draw, count), 0)
        for number, count in enumerate(counts)
    )
    return median(turn.seconds for _, turn in turns)


def _prompt(seed: int, number: int) -> list[int]:
    return _tokens(random.Random(f"{seed} prompt {number}"), _PROMPT_TOKENS)


def _tokens(draw: random.Random, count: int) -> list[int]:
    return [draw.randrange(1000, 40_000) for _ in range(count)]


def _answered(
    core: EngineCore, name: str, tokens: list[int], number: int
) -> tuple[list[int], Turn]:
    before = core.stats().cached_tokens
    core.submit(_request(name, tokens))
    started, first, answer = perf_counter(), 0.0, list[int]()
    for new in _steps(core):
        first = first or perf_counter() - started
        answer += new
    return answer, Turn(number, len(tokens), core.stats().cached_tokens - before, first)


def _steps(core: EngineCore) -> Iterator[list[int]]:
    while not core.is_idle:
        for delta in core.step():
            if delta.token_ids:
                yield delta.token_ids


def _request(name: str, tokens: list[int]) -> EngineRequest:
    shared, private = _KEYS
    is_chat = "alone" not in name
    return EngineRequest(
        request_id=name,
        tenant="bench",
        prompt=list(tokens),
        namespaces=Namespaces(
            shared_key=shared,
            private_key=private,
            shared_tokens=_PROMPT_TOKENS if is_chat else 0,
        ),
        sampling=SamplingParams(
            max_tokens=_ANSWER_TOKENS if is_chat else 1, temperature=0, stop_token_ids=()
        ),
        cache=CachePolicy(ends=(len(tokens) - _OPENING_TOKENS,)),
    )
