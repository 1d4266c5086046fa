"""What a small model answers that is the same on every machine."""

from __future__ import annotations

import random
import tempfile
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import torch
from transformers import AutoModelForCausalLM

from engine.api import EngineRequest
from tests.engine.model.test_model import make_config
from tests.engine.run.test_every_mode_has_the_same_bits import core_of
from tests.engine.simulated_model import random_prompt
from tests.engine.simulation import make_request

_LEAST_GAP = 0.01
"""Of log-probability, between a token and the next likeliest: far beyond what rounding does."""


def greedy_tokens() -> dict[str, list[int]]:
    """Answers of the engine in float32, by request: cold, found in the cache, and side by side.

    Raises `ValueError` where another machine might choose another token.
    """
    with tempfile.TemporaryDirectory() as folder:
        _save_model(Path(folder))
        core = core_of(Path(folder), ("float32", "auto"), batch_invariant=False)
        answers: dict[str, list[int]] = {}
        for together in (_requests()[:1], _requests()[1:]):
            for request in together:
                core.submit(request)
            while not core.is_idle:
                for delta in core.step():
                    answers.setdefault(delta.request_id, []).extend(delta.token_ids)
                    for logprobs in delta.logprobs or []:
                        _check_gap([logprob for _, logprob in logprobs.top])
    return answers


def _save_model(folder: Path) -> None:
    """A Llama of numbers that no processor rounds in its own way."""
    model = AutoModelForCausalLM.from_config(make_config("llama"), dtype=torch.float32)
    numbers = np.random.default_rng(11)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            drawn = numbers.standard_normal(parameter.shape, dtype=np.float64) * 0.15
            parameter.data = torch.from_numpy(drawn.astype(np.float32))
    model.save_pretrained(folder)


def _requests() -> list[EngineRequest]:
    rng = random.Random(4)
    system = random_prompt(rng, 40)
    asked = [make_request(str(one), system + random_prompt(rng, 5 + one)) for one in range(4)]
    return [
        msgspec.structs.replace(
            one, sampling=msgspec.structs.replace(one.sampling, max_tokens=16, logprobs=2)
        )
        for one in asked
    ]


def _check_gap(likeliest: list[float]) -> None:
    if any(first - second < _LEAST_GAP for first, second in pairwise(likeliest)):
        raise ValueError("two tokens are about as likely: take another seed")
