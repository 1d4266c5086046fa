"""The loads of `bench speculate`, the two engines they are put on, and stand-ins for drafts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Final, NamedTuple

import msgspec
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from bench.common import engines
from bench.common.figures import InTurns
from bench.common.traces import Conversation
from bench.common.workload import system_prompt
from engine.api import EngineRequest, Namespaces, SamplingParams
from engine.assembly.assemble import make_drafter, make_runner
from engine.assembly.parts import Parts, load_parts
from engine.blocks.hashing import KEY_BYTES
from engine.config import EngineConfig
from engine.model.calibration import calibrate_rows
from engine.model.layers.paged_model import PagedModel
from engine.model.weights import resolve_model
from engine.serve.core import EngineCore

_KV_TOKENS: Final = 1 << 16
"""Of each engine: all prompts stay in the cache."""
_MOST_AT_ONCE: Final = 32
_SYSTEMS: Final = 4
_SYSTEM_TOKENS: Final = 512
_CORRECT: Final = "Correct the spelling mistakes in this text, and repeat all of it:"
_REPEAT: Final = "Repeat this text word for word:"
_TEXTS: Final = (
    "The old mill stands were two rivers meet. For a hundred years it ground the corn of three "
    "vilages, until the road was built and the farmers took there grain to the town. Now the wheel "
    "is still, and swalows nest under the roof. In summer children climb the wall to look at the "
    "water, and in winter the river freezes and the miller's grandson clears the snow from the "
    "steps, allthough nobody asks him to.",
    "To replace the filter, switch the machine off and wait untill the red light goes out. Open "
    "the lid, turn the filter to the left, and pull it out. Rinse the holder with cold water. Put "
    "the new filter in, turn it to the right until it clicks, and close the lid. Switch the "
    "machine on. If the red light blinks three times, the filter is not in it's place: switch "
    "the machine off, and begin again.",
    "Dear Ms Weaver, thank you for you're letter of the third of May. We have looked at the two "
    "chairs that you sent back, and found that the legs of both were glued before the varnish was "
    "dry. This should not have happend. We will send you two new chairs next week, and you need "
    "not pay for them or for there delivery. Yours sincerely, Anna Field, Field and Sons.",
    "def area(shape):\n"
    "    if shape.kind == 'circle':\n        return 3.14159 * shape.radius ** 2\n"
    "    if shape.kind == 'square':\n        return shape.side ** 2\n"
    "    if shape.kind == 'rectangle':\n        return shape.width * shape.height\n"
    "    raise ValueError(shape.kind)\n\n\n"
    "def total(shapes):\n    result = 0\n    for shape in shapes:\n"
    "        result += area(shape)\n    return result\n",
)

_LAYERS: Final = 2


class _Case(NamedTuple):
    """A load: its prompts, how many at once, and how tokens are drawn."""

    prompts: list[list[int]]
    at_once: int = 1
    temperature: float = 0.0
    top_p: float = 1.0


_GREEDY: Final = _Case([])


@dataclass
class Found(InTurns):
    """A load's tokens a second, without speculation and with it, and what came of guesses."""

    drafted: int = 0
    accepted: int = 0
    tokens: int = 0

    @property
    def accepted_share(self) -> float:
        """Guesses that came true."""
        return self.accepted / max(1, self.drafted)

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a sequence got of a step it was in."""
        return self.tokens / max(1, self.tokens - self.accepted)


class SpeculateBench:
    """Two engines over one model's weights, of which one runs at a time."""

    def __init__(self, config: EngineConfig, max_tokens: int) -> None:
        """Load the model, and measure what rows cost as a start of the engine does."""
        parts = load_parts(config)
        self.dtype = parts.info.dtype
        self.calibration_seconds = 0.0
        self._off = self._core(_without_guesses(parts))
        self._on = self._core(parts)
        self._eos_token_ids = parts.info.eos_token_ids
        self._max_tokens = max_tokens
        self._names = map(str, itertools.count())
        self._tokenizer = AutoTokenizer.from_pretrained(config.model_path)

    def measure(
        self, loads: Sequence[str], chats: Sequence[Conversation], alone: int, rounds: int
    ) -> dict[str, Found]:
        """Put each load on both engines; of the chats so many one at a time."""
        cases = {load: case for load, case in self._cases(chats, alone).items() if load in loads}
        prompts = {tuple(prompt): prompt for case in cases.values() for prompt in case.prompts}
        for core in (self._off, self._on):
            self._answers(core, list(prompts.values()), _GREEDY, max_tokens=1)
        found = {load: Found() for load in cases}
        for number, load in itertools.product(range(rounds), cases):
            self._round(cases[load], found[load], number)
        return found

    def _core(self, parts: Parts) -> EngineCore:
        """An engine with memory of its own."""
        config, info = parts.config, parts.info
        num_blocks = _KV_TOKENS // config.block_size
        model = PagedModel(
            parts.model.weights, config.block_size, config.kv_dtype, config.batch_invariant
        )
        model.allocate(num_blocks + 1)
        if parts.draft is not None:
            parts.draft.allocate(num_blocks + 1)
        own = replace(
            parts,
            model=model,
            info=msgspec.structs.replace(
                info,
                num_blocks=num_blocks,
                max_context_tokens=min(info.max_context_tokens, _KV_TOKENS),
            ),
        )
        runner, graphs = make_runner(own)
        start = perf_counter()
        costs = calibrate_rows(
            model,
            info.max_running_sequences,
            own.info.max_context_tokens,
            graphs.replay_smallest if graphs else None,
        )
        self.calibration_seconds = perf_counter() - start
        return EngineCore(own.config, own.info, runner, own.costs, costs, make_drafter(own))

    def _cases(self, chats: Sequence[Conversation], alone: int) -> dict[str, _Case]:
        """All loads; the chats of the file from its beginning to its end."""
        spread = chats[:: max(1, len(chats) // _MOST_AT_ONCE)][:_MOST_AT_ONCE]
        second = self._second_turns(spread)
        some = second[:: max(1, len(second) // alone)][:alone]
        every = max(1, len(second) // 8)
        eight = second[::every][:8]
        systems = [system_prompt(str(n), _SYSTEM_TOKENS, self._count) for n in range(_SYSTEMS)]
        behind = zip(spread[::every][:8], itertools.cycle(systems), strict=False)
        edits, quotes = (
            [self._prompt([f"{task}\n\n{text}"]) for text in _TEXTS] for task in (_CORRECT, _REPEAT)
        )
        return {
            "edit": _Case(edits),
            "quote": _Case(quotes),
            "chat": _Case(some),
            "chat_sampled": _Case(some, 1, 1.0, 0.95),
            "random": _Case(some[:4], 1, 3.0),
            "shared_8": _Case([self._prompt(chat[:1], system) for chat, system in behind], 8),
            "mixed_8": _Case([*edits, *eight[1::2]], 8),
            "batch_8": _Case(eight, 8),
            "batch_32": _Case(second, 32),
            "batch_8_sampled": _Case(eight, 8, 1.0, 0.95),
            "batch_32_sampled": _Case(second, 32, 1.0, 0.95),
        }

    def _round(self, case: _Case, found: Found, number: int) -> None:
        """All prompts once on each engine, as many at once as the case says; who begins differs
        from prompt to prompt, and from round to round."""
        num_tokens = {self._off: 0, self._on: 0}
        seconds = {self._off: 0.0, self._on: 0.0}
        before = self._on.stats()
        starts = range(0, len(case.prompts), case.at_once)
        batches = [case.prompts[first : first + case.at_once] for first in starts]
        if len(batches) == 1:
            batches *= 2  # whoever begins is slower by some per cent
        for order, prompts in enumerate(batches, number):
            turns = (self._off, self._on) if order % 2 else (self._on, self._off)
            for core in turns:
                start = perf_counter()
                answers = self._answers(core, prompts, case, self._max_tokens)
                seconds[core] += perf_counter() - start
                num_tokens[core] += sum(map(len, answers))
        after = self._on.stats()
        found.plain_rates.append(num_tokens[self._off] / seconds[self._off])
        found.rates.append(num_tokens[self._on] / seconds[self._on])
        found.drafted += after.drafted_tokens - before.drafted_tokens
        found.accepted += after.accepted_tokens - before.accepted_tokens
        found.tokens += num_tokens[self._on]

    def _answers(
        self, core: EngineCore, prompts: Sequence[list[int]], case: _Case, max_tokens: int
    ) -> list[list[int]]:
        """What an engine answers to prompts that come at once."""
        answers: dict[str, list[int]] = {}
        for number, prompt in enumerate(prompts):
            request = self._request(prompt, case, number, max_tokens)
            answers[request.request_id] = []
            core.submit(request)
        while not core.is_idle:
            for delta in core.step():
                answers[delta.request_id] += delta.token_ids
        return list(answers.values())

    def _second_turns(self, chats: Sequence[Conversation]) -> list[list[int]]:
        """Chats up to their second question, with the model's own answers to the first."""
        first = [self._prompt(chat[:1]) for chat in chats]
        answers = self._answers(self._off, first, _GREEDY, self._max_tokens)
        said = [self._tokenizer.decode(answer, skip_special_tokens=True) for answer in answers]
        return [
            self._prompt([chat[0], answer, *chat[1:2]])
            for chat, answer in zip(chats, said, strict=True)
        ]

    def _count(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False))

    def _prompt(self, turns: Sequence[str], system: str | None = None) -> list[int]:
        """The user's and the model's turns under the model's chat template."""
        roles = itertools.cycle(["user", "assistant"])
        messages = [] if system is None else [{"role": "system", "content": system}]
        messages += [
            {"role": role, "content": turn} for role, turn in zip(roles, turns, strict=False)
        ]
        text = self._tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def _request(self, prompt: list[int], case: _Case, seed: int, max_tokens: int) -> EngineRequest:
        """One whose prompt is shared, and whose answer is nobody else's."""
        name = next(self._names)
        own_key = name.encode().ljust(KEY_BYTES, b".")
        return engines.request(
            name,
            prompt,
            namespaces=Namespaces(
                shared_key=bytes(KEY_BYTES), private_key=own_key, shared_tokens=len(prompt)
            ),
            sampling=SamplingParams(
                max_tokens=max_tokens,
                temperature=case.temperature,
                top_p=case.top_p,
                seed=seed,
                stop_token_ids=self._eos_token_ids,
            ),
        )


def _without_guesses(parts: Parts) -> Parts:
    """The same, to compute one token a step."""
    off = msgspec.structs.replace(parts.config, speculation="off", draft_model_path=None)
    return replace(parts, config=off, draft=None)


def draft_folder(name: str, model: Path, scratch: Path) -> Path:
    """The folder of the draft model `name` for `model`; what is made for it lies in `scratch`.

    The model "itself", and a "stranger" that knows nothing: between them lies what a trained one
    does.
    """
    if name == "itself":
        return model
    if name == "stranger":
        _save_stranger(model, scratch)
        return scratch
    return resolve_model(name)


def _save_stranger(model: Path, folder: Path) -> None:
    """Two layers like those of `model`, and its vocabulary, with random weights."""
    config = AutoConfig.from_pretrained(model)
    config.num_hidden_layers = _LAYERS
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:_LAYERS]
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)
