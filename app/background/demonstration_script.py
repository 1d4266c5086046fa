"""What a demonstration does, one beat after the other: what to say of it, and the requests."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from app.generation.begin import Generations
from app.prompt.chat_template import ChatTemplate
from app.request.request import Candidates, FieldNames, GenerationRequest
from app.wire.common import SamplingFields
from engine.client import EngineClient
from tenants.records import Principal

ANA: Final = "demo-ana"
BEN: Final = "demo-ben"
CLEO: Final = "demo-cleo"
TENANTS: Final = (ANA, BEN, CLEO)
_RULE: Final = (
    "Rule {}: be brief, be kind, look into the catalog before you answer, name the price of each "
    "anvil in crowns, and never promise a day of delivery that the warehouse has not confirmed. "
)
_SAMPLE_RULES: Final = 8
_PROMPT: Final = 0.4
"""As a part of what its tenant may hold: two fit, but not with their answers."""
_NAMES: Final = FieldNames("input", "max_output_tokens")


@dataclass(frozen=True)
class Beat:
    """One thing that is shown."""

    text: str
    act: Callable[[], Awaitable[None]]


class Script:
    """For a model whose tenants may hold so many blocks each."""

    def __init__(
        self,
        engine: EngineClient,
        generations: Generations,
        template: ChatTemplate,
        principals: Mapping[str, Principal],
        num_blocks: int,
    ) -> None:
        self._engine = engine
        self._generations = generations
        self._template = template
        self._principals = principals
        self._num_blocks = num_blocks

    async def beats(self) -> list[Beat]:
        """What is shown, in its order."""
        rules = await self._rules(_PROMPT)
        prompt = f"about {round(_PROMPT * self._tokens, -1):,.0f} tokens"

        async def ask_twice() -> None:
            await asyncio.gather(
                self._ask(ANA, rules, "What does the small anvil cost?", 0.2),
                self._ask(ANA, rules, "Which anvil is the heaviest?", 0.2),
            )

        async def press() -> None:
            await asyncio.gather(
                self._ask(CLEO, f"For anvils. {rules}", "All of anvils!", 0.12),
                self._ask(CLEO, f"For rope. {rules}", "All of rope!", 0.3),
            )

        async def evict() -> None:
            await self._ask(CLEO, f"For glue. {rules}", "What is glue for?", 0.02)
            await self._engine.forget_tenant(CLEO)
            await self._ask(CLEO, f"For glue. {rules}", "What is glue for?", 0.1)

        return [
            Beat(
                f"{ANA} asks under a prompt of {prompt}. All of it is computed: its blocks are "
                "green while she is answered, and stay in the cache, blue, when she has been.",
                lambda: self._ask(ANA, rules, "What is an anvil for?", 0.2),
            ),
            Beat(
                f"Sharing: two more of {ANA}'s requests begin with the same prompt. It is found, "
                "and not computed again: orange blocks are held by both at once.",
                ask_twice,
            ),
            Beat(
                f"{BEN} sends the very same prompt, and nothing of it is found: it is computed "
                "anew. No tenant leans on another's blocks, or can tell by time what it has said.",
                lambda: self._ask(BEN, rules, "What is an anvil for?", 0.2),
            ),
            Beat(
                f"A fork: {BEN} has one question answered twice. Both answers lean on one prompt; "
                "only the block in which they part is copied, and each goes on in its own.",
                lambda: self._ask(BEN, rules, "Sell me an anvil.", 0.15, num=2),
            ),
            Beat(
                f"Pressure: two of {CLEO}'s requests together want more than the "
                f"{self._num_blocks} blocks that she may hold. One of them is preempted or waits, "
                "and its stream goes on where it was: its reader misses no token.",
                press,
            ),
            Beat(
                f"An eviction: {CLEO} asks, all that she has in the cache is dropped, and she asks "
                "the same again. Choose her newest request below: it says where its prompt broke, "
                "and why.",
                evict,
            ),
        ]

    @property
    def _tokens(self) -> int:
        return self._num_blocks * self._engine.info.block_size

    async def _rules(self, part: float) -> str:
        """A text that takes such a part of what a tenant may hold."""
        sample = "".join(map(_RULE.format, range(1, _SAMPLE_RULES + 1)))
        ids = await self._template.text_ids(ANA, sample, "input")
        num_characters = int(part * self._tokens * len(sample) / len(ids))
        rules = -(-num_characters // len(_RULE)) + 1
        return "".join(map(_RULE.format, range(1, rules + 1)))[:num_characters]

    async def _ask(self, tenant: str, rules: str, question: str, part: float, num: int = 1) -> None:
        """Have a question answered, at a length that takes such a part of what a tenant may hold.

        Raises what `Generations.begin` raises.
        """
        request = GenerationRequest(
            id=f"resp_{secrets.token_hex(16)}",
            items=[{"role": "user", "content": question}],
            names=_NAMES,
            sampling=SamplingFields(temperature=0.6, ignore_eos=True),
            instructions=rules,
            max_tokens=int(part * self._tokens),
            candidates=Candidates(num_choices=num, num_sequences=num),
        )
        generation = await self._generations.begin(self._principals[tenant], request)
        generation.is_for_somebody = False
        async for _ in generation.pieces():
            pass
