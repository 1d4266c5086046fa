"""The loads of `bench.engine.speculate`, and the two engines that they are put on."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Final, NamedTuple

import msgspec
from transformers import AutoTokenizer

from bench.common.mt_bench import Conversation
from engine.api import EngineRequest, Namespaces, SamplingParams
from engine.blocks.hashing import KEY_BYTES
from engine.config import EngineConfig
from engine.model.calibration import calibrate_rows
from engine.run.assemble import load_parts, make_runner
from engine.serve.core import EngineCore

_NAMESPACES: Final = Namespaces(shared_key=bytes(KEY_BYTES), private_key=bytes(KEY_BYTES))
_TASKS: Final = (
    "Correct the spelling mistakes in this text, and repeat all of it:",
    "Repeat this text word for word:",
)
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


class _Case(NamedTuple):
    """A load: its prompts, how many at once, and how tokens are drawn."""

    prompts: list[list[int]]
    at_once: int
    temperature: float = 0.0
    top_p: float = 1.0


@dataclass
class Found:
    """A load's tokens a second in each round, off and on, and what came of guesses."""

    rates: dict[str, list[float]] = field(default_factory=lambda: {"off": [], "lookup": []})
    drafted: int = 0
    accepted: int = 0
    tokens: int = 0

    @property
    def off(self) -> float:
        """Tokens a second without speculation, the median."""
        return median(self.rates["off"])

    @property
    def on(self) -> float:
        """The same with it."""
        return median(self.rates["lookup"])

    @property
    def speedup(self) -> float:
        """The median of the rounds' ratios."""
        pairs = zip(self.rates["lookup"], self.rates["off"], strict=True)
        return median(on / off for on, off in pairs)

    @property
    def accepted_share(self) -> float:
        """Guesses that came true."""
        return self.accepted / max(1, self.drafted)

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a sequence got of a step it was in."""
        return self.tokens / max(1, self.tokens - self.accepted)


class SpeculateBench:
    """Two engines over one model and its memory, of which one runs at a time."""

    def __init__(self, config: EngineConfig, max_tokens: int, rounds: int) -> None:
        parts = load_parts(config)
        runner, graphs = make_runner(parts)
        info = parts.info
        start = perf_counter()
        replay = graphs.replay_smallest if graphs else None
        costs = calibrate_rows(
            parts.model, info.max_running_sequences, info.max_context_tokens, replay
        )
        self.calibration_seconds = perf_counter() - start
        self.dtype = info.dtype
        self._info = info
        self._tokens = max_tokens
        self._rounds = rounds
        self._names = map(str, itertools.count())
        self._tokenizer = AutoTokenizer.from_pretrained(config.model_path)
        self._cores = {
            mode: EngineCore(
                msgspec.structs.replace(parts.config, speculation=mode),
                info,
                runner,
                parts.costs,
                costs,
            )
            for mode in ("off", "lookup")
        }

    def measure(self, loads: Sequence[str], chats: Sequence[Conversation]) -> dict[str, Found]:
        """Put each load on both engines, in turns."""
        second = [self._second_turn(chat) for chat in chats]
        edits = [self._prompt([f"{task}\n\n{text}"]) for text in _TEXTS for task in _TASKS]
        many = [prompt for prompt, _ in zip(itertools.cycle(second), range(32), strict=False)]
        cases = {
            "edit": _Case(edits, 1),
            "chat": _Case(second, 1),
            "chat_sampled": _Case(second, 1, 1.0, 0.95),
            "random": _Case(second[:4], 1, 3.0),
            "batch_8": _Case(many[:8], 8),
            "batch_32": _Case(many, 32),
            "batch_8_sampled": _Case(many[:8], 8, 1.0, 0.95),
            "batch_32_sampled": _Case(many, 32, 1.0, 0.95),
        }
        found = {load: Found() for load in loads}
        for number in range(self._rounds):
            for load in loads:
                modes = ("off", "lookup") if number % 2 else ("lookup", "off")
                for mode in modes:
                    rate = self._rate(mode, cases[load], found[load])
                    found[load].rates[mode].append(rate)
        return found

    def _rate(self, mode: str, case: _Case, found: Found) -> float:
        """Tokens a second of one engine on a load, from the first tokens on."""
        core = self._cores[mode]
        before = core.stats()
        tokens, seconds = 0, 0.0
        for first in range(0, len(case.prompts), case.at_once):
            for number, prompt in enumerate(case.prompts[first : first + case.at_once], first):
                core.submit(self._request(prompt, case, number))
            num_prompts = len(case.prompts[first : first + case.at_once])
            begun: set[str] = set()
            start = perf_counter()
            while not core.is_idle:
                deltas = core.step()
                if len(begun) < num_prompts:  # prompts are still computed
                    begun.update(delta.request_id for delta in deltas)
                    start = perf_counter()
                else:
                    tokens += sum(len(delta.token_ids) for delta in deltas)
            seconds += perf_counter() - start
        if mode == "lookup":
            after = core.stats()
            found.drafted += after.drafted_tokens - before.drafted_tokens
            found.accepted += after.accepted_tokens - before.accepted_tokens
            found.tokens += after.output_tokens - before.output_tokens
        return tokens / seconds

    def _second_turn(self, chat: Conversation) -> list[int]:
        """A chat up to its second question, with the model's own answer to the first."""
        core = self._cores["off"]
        core.submit(self._request(self._prompt(chat[:1]), _Case([], 1), 0))
        answer: list[int] = []
        while not core.is_idle:
            answer += [token for delta in core.step() for token in delta.token_ids]
        said = self._tokenizer.decode(answer, skip_special_tokens=True)
        return self._prompt([chat[0], said, *chat[1:2]])

    def _prompt(self, turns: Sequence[str]) -> list[int]:
        """The user's and the model's turns under the model's chat template."""
        roles = itertools.cycle(["user", "assistant"])
        messages = [
            {"role": role, "content": turn} for role, turn in zip(roles, turns, strict=False)
        ]
        text = self._tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def _request(self, prompt: list[int], case: _Case, seed: int) -> EngineRequest:
        return EngineRequest(
            request_id=next(self._names),
            tenant="bench",
            prompt=prompt,
            namespaces=_NAMESPACES,
            sampling=SamplingParams(
                max_tokens=self._tokens,
                temperature=case.temperature,
                top_p=case.top_p,
                seed=seed,
                stop_token_ids=self._info.eos_token_ids,
            ),
            cache=False,
        )
