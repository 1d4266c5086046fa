"""`POST /v1/responses/compact`, and its item as the start of a new chain."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import openai
import pytest

from tests.app.conftest import MODEL, World

CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "We launch on Tuesday."},
    {"role": "assistant", "content": "Understood."},
]


async def compacted(world: World, **fields: Any) -> Any:
    world.engine.answer = "They launch on Tuesday."
    try:
        return await world.client().responses.compact(model=MODEL, **fields)
    finally:
        world.engine.answer = None


def as_input(result: Any) -> list[dict[str, Any]]:
    return [item.model_dump(exclude_none=True) for item in result.output]


async def test_a_compacted_conversation_goes_on_from_its_summary(world: World) -> None:
    result = await compacted(world, input=CONVERSATION, prompt_cache_key="launch")
    assert result.object == "response.compaction"
    assert [item.type for item in result.output] == ["message", "compaction"]
    assert result.usage.output_tokens == len("They launch on Tuesday.") + 1
    follow_up: Any = [*as_input(result), {"role": "user", "content": "When?"}]
    await world.client().responses.create(model=MODEL, input=follow_up)
    text = world.engine.tokenizer.decode(world.engine.requests[-1].prompt)
    assert "system\nBe brief.<|im_end|>" in text
    assert "Summary of the conversation so far: They launch on Tuesday." in text
    assert "We launch" not in text


async def test_a_stored_response_is_compacted_by_its_id(world: World) -> None:
    first = await world.client().responses.create(
        model=MODEL, input="We launch on Tuesday.", instructions="Be brief."
    )
    result = await compacted(world, previous_response_id=first.id)
    assert [item.type for item in result.output] == ["message", "compaction"]
    assert as_input(result)[0]["content"] == [{"type": "input_text", "text": "Be brief."}]
    asked = world.engine.tokenizer.decode(world.engine.requests[-1].prompt)
    assert "We launch on Tuesday." in asked
    assert "Summarize our conversation" in asked


async def test_a_compaction_item_is_bound_to_its_tenant(world: World) -> None:
    items: Any = as_input(await compacted(world, input=CONVERSATION))
    forged: Any = [{"type": "compaction", "encrypted_content": "bm90IG91cnM="}]
    for tenant, given in (("umbra", items), ("acme", forged)):
        with pytest.raises(openai.BadRequestError, match="compaction item") as refused:
            await world.client(tenant).responses.create(model=MODEL, input=given)
        assert str(refused.value.param).endswith("encrypted_content")


async def test_a_compaction_without_model_or_input_is_refused(world: World) -> None:
    async with httpx.AsyncClient(base_url=world.base_url, headers=world.headers()) as http:
        for body, param in (({"input": "x"}, "model"), ({"model": MODEL}, "input")):
            answer = await http.post("/v1/responses/compact", json=body)
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == param


async def test_compacting_stays_in_the_end_users_namespace(world: World) -> None:
    first = await world.client().responses.create(model=MODEL, input="secret", user="ann")
    answered = world.engine.requests[-1].namespaces
    await compacted(world, previous_response_id=first.id)
    assert world.engine.requests[-1].namespaces.private_key == answered.private_key


SECRET = "You are the bank's assistant; the vault opens at nine."


async def test_a_registered_prompts_text_stays_here_and_its_conversation_stays_under_it(
    world: World,
) -> None:
    await world.register("acme", "bank", SECRET + " Speak {{language}}.")
    text = SECRET + " Speak Dutch."
    prompt: Any = {"id": "bank", "variables": {"language": "Dutch"}}
    create = world.client().responses.create
    first = await create(model=MODEL, input="We launch on Tuesday.", prompt=prompt)
    shared = world.engine.requests[-1].namespaces.shared_tokens
    result = await compacted(world, previous_response_id=first.id)
    again = await compacted(world, input=as_input(result))
    for compact in (result, again):
        assert [item.type for item in compact.output] == ["compaction"]
        assert "vault" not in compact.model_dump_json()
        sealed = compact.output[0].encrypted_content
        assert b"vault" not in base64.urlsafe_b64decode(sealed)
        follow_up: Any = [*as_input(compact), {"role": "user", "content": "When?"}]
        await create(model=MODEL, input=follow_up)
        asked = world.engine.requests[-1]
        decoded = world.engine.tokenizer.decode(asked.prompt)
        assert decoded.startswith(f"<|im_start|>system\n{text}<|im_end|>")
        assert "Summary of the conversation so far: They launch on Tuesday." in decoded
        assert asked.namespaces.shared_tokens == shared > 0


async def test_a_conversation_compacted_under_one_prompt_can_go_on_under_another(
    world: World,
) -> None:
    """The named one replaces that of the summary, for good."""
    await world.register("acme", "bank", SECRET)
    await world.register("acme", "shop", "You are the shop's assistant, always cheerful.")
    create = world.client().responses.create
    bank: Any = {"id": "bank"}
    shop: Any = {"id": "shop"}
    first = await create(model=MODEL, input="We launch on Tuesday.", prompt=bank)
    items = as_input(await compacted(world, previous_response_id=first.id))
    follow_up: Any = [*items, {"role": "user", "content": "When?"}]
    await create(model=MODEL, input=follow_up, prompt=shop)
    asked = world.engine.requests[-1]
    decode = world.engine.tokenizer.decode
    shared = decode(asked.prompt[: asked.namespaces.shared_tokens])
    assert shared.startswith("<|im_start|>system\nYou are the shop's assistant")
    assert "vault" not in decode(asked.prompt)
    assert "Summary of the conversation so far: They launch on Tuesday." in decode(asked.prompt)
    # From here on it is the other prompt's, also where it is compacted again.
    second = await create(model=MODEL, input=follow_up, prompt=shop)
    again: Any = as_input(await compacted(world, previous_response_id=second.id))
    await create(model=MODEL, input=[*again, {"role": "user", "content": "When?"}])
    asked = world.engine.requests[-1]
    assert decode(asked.prompt).startswith("<|im_start|>system\nYou are the shop's assistant")
    assert "vault" not in decode(asked.prompt)


async def test_a_prompt_that_is_gone_is_missed_by_the_conversation_that_was_under_it(
    world: World,
) -> None:
    await world.register("acme", "bank", SECRET)
    prompt: Any = {"id": "bank"}
    first = await world.client().responses.create(model=MODEL, input="Hi.", prompt=prompt)
    items: Any = as_input(await compacted(world, previous_response_id=first.id))
    await world.prompts.delete("acme", "bank")
    with pytest.raises(openai.BadRequestError, match="no prompt 'bank'") as refused:
        await world.client().responses.create(model=MODEL, input=items)
    assert (refused.value.code, refused.value.param) == (
        "prompt_not_found",
        "input[0].encrypted_content",
    )
