"""Two tenants at once on the real engine: what they share is what their group was given."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from transformers import PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer

from bench.common.service import Service
from tests.end_to_end.conftest import BLOCK_SIZE
from tests.end_to_end.test_exactness import (
    MAX_TOKENS,
    ask,
    cached_tokens,
    generated,
    metric,
    open_socket,
    text_of,
)

CATALOG = "You sell anvils, rope and glue. Name a price in every answer, and never apologise."
TENANTS = ("north", "south")
QUESTIONS = ["What do you have for a carpenter?", "How long is your longest rope?"]
SAME = "Which of your goods is the heaviest one?"


@pytest.fixture
async def keys(service: Service) -> dict[str, str]:
    """API keys of two tenants of one share group, which has one prompt."""
    keys = {name: service.create_tenant(name) for name in TENANTS}
    async with service.operator() as admin:
        for method, path, body in (
            ("POST", "/admin/groups", {"id": "dealers"}),
            ("PUT", "/admin/groups/dealers/prompts/catalog", {"text": CATALOG}),
            *(("PATCH", f"/admin/tenants/{name}", {"share_group": "dealers"}) for name in TENANTS),
        ):
            (await admin.request(method, path, json=body)).raise_for_status()
    return keys


@pytest.fixture(scope="module")
def shared(tokenizer: Tokenizer) -> int:
    """Tokens of the full blocks that the group's prompt and the template around it make."""
    head = f"<|im_start|>system\n{CATALOG}<|im_end|>\n<|im_start|>user\n"
    return len(tokenizer.encode(head)) // BLOCK_SIZE * BLOCK_SIZE


async def turn(service: Service, api_key: str, question: str, **fields: Any) -> dict[str, Any]:
    async with open_socket(service, api_key) as socket:
        return await ask(socket, question, prompt={"id": "catalog"}, **fields)


async def test_both_streams_are_right_and_only_the_groups_prompt_is_shared(
    service: Service,
    keys: dict[str, str],
    shared: int,
    tokenizer: Tokenizer,
    reference: PreTrainedModel,
) -> None:
    def right(*turns: str) -> str:
        roles = ["system", *("user", "assistant") * len(turns)]
        messages = [
            {"role": role, "content": text}
            for role, text in zip(roles, (CATALOG, *turns), strict=False)
        ]
        return generated([messages], tokenizer, reference)[0]

    first_of_all = await turn(service, keys["north"], "Who are you?", safety_identifier="warm")
    assert cached_tokens(first_of_all) in (0, shared), "warm already, or not yet"

    # Each tenant asks something of its own, at the same time.
    answers = await asyncio.gather(
        *(
            turn(service, keys[name], question, safety_identifier="ann")
            for name, question in zip(TENANTS, QUESTIONS, strict=True)
        )
    )
    for question, answer in zip(QUESTIONS, answers, strict=True):
        assert text_of(answer) == right(question)
        assert cached_tokens(answer) == shared

    # The same question of users of the same name: nothing is found of the other tenant's.
    expected = right(SAME)
    for name in TENANTS:
        cold = await turn(service, keys[name], SAME, safety_identifier="bob")
        again = await turn(service, keys[name], SAME, safety_identifier="bob")
        assert text_of(cold) == text_of(again) == expected
        assert cached_tokens(cold) == shared
        assert cached_tokens(again) == again["usage"]["input_tokens"] - 1

    # Their conversations go on side by side, each from its own blocks.
    follow_up = "And in two words?"
    turns = await asyncio.gather(
        *(
            turn(
                service,
                keys[name],
                follow_up,
                previous_response_id=answer["id"],
                safety_identifier="ann",
            )
            for name, answer in zip(TENANTS, answers, strict=True)
        )
    )
    for question, before, answer in zip(QUESTIONS, answers, turns, strict=True):
        assert before["usage"]["output_tokens"] == MAX_TOKENS, "a whole turn to go on from"
        assert text_of(answer) == right(question, text_of(before), follow_up)
        assert cached_tokens(answer) > before["usage"]["input_tokens"]
    assert metric(service, "partywall_engine_invariant_violations_total") == 0
