"""The sampling fields of a request as the engine takes them."""

from __future__ import annotations

import re
import secrets

from app.wire.common import SamplingFields
from app.wire.errors import invalid_request
from engine.api import EngineInfo, SamplingParams

_TOKEN_ID = re.compile(r"[0-9]{1,18}")
"""Few enough digits to be read: Python refuses more than 4,300 of them with an error of its own."""


def sampling_params(
    fields: SamplingFields, info: EngineInfo, max_tokens: int, logprobs: int | None
) -> SamplingParams:
    """How the engine samples. Raises `ApiError` for token ids outside the vocabulary."""
    extra_stops = tuple(fields.stop_token_ids or ())
    for index, token_id in enumerate(extra_stops):
        _check_token(token_id, info, f"stop_token_ids[{index}]")
    eos = () if fields.ignore_eos else info.eos_token_ids
    # A negative seed is as good as any: it maps to one non-negative 63-bit number.
    seed = secrets.randbits(63) if fields.seed is None else fields.seed & (2**63 - 1)
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=or_default(fields.temperature, 1.0),
        top_p=or_default(fields.top_p, 1.0),
        top_k=fields.top_k or 0,
        min_p=or_default(fields.min_p, 0.0),
        presence_penalty=or_default(fields.presence_penalty, 0.0),
        frequency_penalty=or_default(fields.frequency_penalty, 0.0),
        repetition_penalty=or_default(fields.repetition_penalty, 1.0),
        logit_bias=_logit_bias(fields.logit_bias or {}, info),
        logprobs=logprobs,
        seed=seed,
        stop_token_ids=tuple(dict.fromkeys((*eos, *extra_stops))),
    )


def or_default(value: float | None, default: float) -> float:
    """A number as a float, or the protocol's default where none is given."""
    return default if value is None else float(value)


def _logit_bias(bias: dict[str, float], info: EngineInfo) -> dict[int, float]:
    checked: dict[int, float] = {}
    for name, value in bias.items():
        param = f"logit_bias.{name}"
        if not _TOKEN_ID.fullmatch(name):
            raise invalid_request(f"'{name}' is not a token id.", param)
        _check_token(int(name), info, param)
        checked[int(name)] = float(value)
    return checked


def _check_token(token_id: int, info: EngineInfo, param: str) -> None:
    if not 0 <= token_id < info.vocab_size:
        message = f"Token id {token_id} is outside the vocabulary of {info.vocab_size}."
        raise invalid_request(message, param)
