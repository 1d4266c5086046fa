"""What reuse inside a block adds to prefix caching on real two-turn conversations.

The chat questions of MT-bench (`--questions FILE`; seeded synthetic ones where it is missing) go
through the product's own scheduler and pool, under the model's own chat template: all first turns,
one after the other, then all second ones. Only the answers are made up, of a fixed length: what a
prompt finds in the cache does not depend on them. Full blocks are found all the same without reuse
inside blocks, so one run tells both shares.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.table import Table
from transformers import PreTrainedTokenizerBase

from app.prompt.breakpoints import num_common
from app.prompt.chat_template import ChatTemplate
from app.prompt.tokenizer import load_tokenizer
from app.wire.functions import Message
from app.workers import Workers
from bench.common.engines import request, scripted_core
from bench.common.options import add_model
from bench.common.traces import DEFAULT_QUESTIONS, Conversation, conversations
from bench.common.workload import passage
from bench.registry import BenchError, Result
from engine.api import Namespaces
from engine.blocks.hashing import derive_key
from engine.model.weights import resolve_model
from engine.sequences.plan import Sampled, StepPlan
from engine.serve.core import EngineCore

FIGURES: Final = {
    "cached_share_full_blocks": "prompt tokens found in full blocks of 16 tokens, of all; users "
    "share the head of the template and nothing else",
    "cached_share_in_block": "the same with reuse inside blocks",
    "in_block_tokens_per_request": "prompt tokens found inside blocks, a request",
    "copied_blocks_per_request": "blocks copied for that, a request",
}
_HEADLINE: Final = ("a user each", 16)
_KEY: Final = derive_key(bytes(32), "bench reuse")
_MAX_STEPS: Final = 10_000
_NUM_SLOTS: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class _Found:
    """What the prompts of one run found, in tokens, and what it took."""

    prompt: int
    cached: int
    in_block: int
    copies: int
    requests: int

    def figures(self) -> dict[str, float]:
        return {
            "cached_share_full_blocks": (self.cached - self.in_block) / self.prompt,
            "cached_share_in_block": self.cached / self.prompt,
            "in_block_tokens_per_request": self.in_block / self.requests,
            "copied_blocks_per_request": self.copies / self.requests,
        }


class _ScriptedRunner:
    """A model that says what it is told to; counts the copied blocks."""

    def __init__(self) -> None:
        self.answer: list[int] = []
        self.copies = 0

    def execute(self, plan: StepPlan) -> Sampled:
        """See `engine.serve.core.Runner`."""
        self.copies += len(plan.transfers.copies)
        tokens = [self.answer[sequence.num_output_tokens] for sequence in plan.samplers]
        return Sampled(tokens, [None] * len(tokens))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--questions", type=Path, default=DEFAULT_QUESTIONS, help="of MT-bench")
    add_model(parser)
    parser.add_argument("--block-sizes", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--answer-tokens", type=int, default=200, help="length of an answer, about")


def run(options: argparse.Namespace) -> Result:
    """Play all conversations for every block size, in one namespace and in one for each user."""
    played = conversations(options.questions)
    tokenizer = load_tokenizer(resolve_model(options.model))
    columns = ("namespaces", "block size", "full blocks %", "in-block %", "tokens a request")
    table = Table(*columns, "copies", title="prompt tokens found in the cache")
    figures: dict[str, float] = {}
    for users in ("one for all", "a user each"):
        for block_size in dict.fromkeys([*options.block_sizes, _HEADLINE[1]]):
            found = asyncio.run(_play(played, tokenizer, block_size, users, options.answer_tokens))
            row = found.figures()
            table.add_row(
                users,
                str(block_size),
                f"{100 * row['cached_share_full_blocks']:.1f}",
                f"{100 * row['cached_share_in_block']:.1f}",
                f"{row['in_block_tokens_per_request']:.1f}",
                f"{row['copied_blocks_per_request']:.2f}",
            )
            if (users, block_size) == _HEADLINE:
                figures = row
    found_file = options.questions.is_file()
    return Result(figures, [table], {"questions_found": found_file, "conversations": len(played)})


async def _play(
    conversations: Sequence[Conversation],
    tokenizer: PreTrainedTokenizerBase,
    block_size: int,
    users: str,
    answer_tokens: int,
) -> _Found:
    """All first turns, then all second ones, and so on, with a pool that holds everything."""
    template = ChatTemplate(tokenizer, Workers(), _NUM_SLOTS)
    starts = [await template.prompt_ids("", [_user(text)], "") for text in ("0 first", "x other")]
    head = num_common(*starts)
    runner = _ScriptedRunner()
    core = scripted_core(runner, _NUM_SLOTS, block_size)
    histories: list[list[int]] = [[] for _ in conversations]
    prompts = requests = 0
    for turn in range(max(map(len, conversations))):
        for number, texts in enumerate(conversations):
            if turn >= len(texts):
                continue
            message = [_user(texts[turn])]
            history = histories[number]
            if history:
                prompt = await template.continuation_ids("", history, message, "")
            else:
                prompt = await template.prompt_ids("", message, "")
            runner.answer = _answer(tokenizer, f"{number} {turn}", answer_tokens)
            own = users if users == "one for all" else str(number)
            namespaces = Namespaces(
                shared_key=_KEY, private_key=derive_key(_KEY, own), shared_tokens=head
            )
            _ask(core, f"{number} {turn}", prompt, len(runner.answer), namespaces)
            histories[number] = prompt + runner.answer
            prompts += len(prompt)
            requests += 1
    stats = core.stats()
    return _Found(prompts, stats.cached_tokens, stats.in_block_tokens, runner.copies, requests)


def _ask(
    core: EngineCore, name: str, prompt: list[int], output: int, namespaces: Namespaces
) -> None:
    """Have one request answered. Raises `BenchError` if it fails."""
    deltas = core.submit(request(name, prompt, output, namespaces=namespaces))
    for _ in range(_MAX_STEPS):
        if core.is_idle:
            break
        deltas += core.step()
    if not deltas or deltas[-1].finish_reason != "length":
        raise BenchError(f"request {name!r} was not answered")


def _answer(tokenizer: PreTrainedTokenizerBase, seed: str, tokens: int) -> list[int]:
    """Words without meaning, and the token that ends the turn."""
    ids = list(tokenizer(passage(seed, tokens), add_special_tokens=False)["input_ids"])
    return [*ids[: tokens - 1], int(tokenizer.eos_token_id)]


def _user(text: str) -> Message:
    return {"role": "user", "content": text}
