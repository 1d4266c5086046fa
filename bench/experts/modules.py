"""`python -m bench.experts.modules FOLDER`: a model as `transformers` has it, its own cache too.

A process of its own. It answers each line of its input, a `Question` as JSON, with a line, an
`Answer`; what it times has no server in front of it. All prompts of a question go through the model
as one batch, and so have one length.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel


class Question(msgspec.Struct, frozen=True):
    """Texts of users to answer at once, each with so many tokens."""

    texts: list[str]
    output_tokens: int
    counts_experts: bool = False
    """Whether it tells how many experts a step used, which costs time."""


class Answer(msgspec.Struct, frozen=True):
    """Seconds after the question at which each token of all answers was there."""

    seconds: list[float]
    distinct_experts: float = 0.0
    """Of a layer in a decode step, mean over both."""


def main() -> None:
    """Entry point."""
    folder = Path(sys.argv[1])
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    for line in sys.stdin:
        question = msgspec.json.decode(line, type=Question)
        print(msgspec.json.encode(_answer(model, tokenizer, question)).decode(), flush=True)


@torch.inference_mode()
def _answer(model: PreTrainedModel, tokenizer: Any, question: Question) -> Answer:
    started = perf_counter()
    chats = [[{"role": "user", "content": text}] for text in question.texts]
    prompts = tokenizer.apply_chat_template(
        chats, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    tokens = prompts["input_ids"]
    cache, seconds = None, []
    counts: list[int] = []
    with _counted(model, counts) if question.counts_experts else _alone():
        for _ in range(question.output_tokens):
            found = model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache, tokens = found.past_key_values, found.logits[:, -1:].argmax(-1).squeeze(-1)
            tokens = tokens.view(-1, 1)
            seconds.append(perf_counter() - started)
    layers = model.config.num_hidden_layers  # the prompt's are not those of a decode step
    return Answer(seconds, fmean(counts[layers:]) if counts[layers:] else 0.0)


@contextmanager
def _alone() -> Iterator[None]:
    yield


@contextmanager
def _counted(model: PreTrainedModel, counts: list[int]) -> Iterator[None]:
    """Notes how many experts each layer's tokens went through, each time they do."""

    def note(_: nn.Module, given: tuple[Tensor, ...]) -> None:
        counts.append(len(torch.unique(given[1])))  # hidden states, chosen experts, weights

    hooks: list[Callable[[], None]] = [
        module.register_forward_pre_hook(note).remove
        for name, module in model.named_modules()
        if name.endswith(".experts")
    ]
    try:
        yield
    finally:
        for remove in hooks:
            remove()


if __name__ == "__main__":
    main()
