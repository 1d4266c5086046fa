"""Who may share what: tenants, end users, registered prompts, and the conversation's own ids."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from app.chat_template import ChatTemplate, common_prefix
from tests.app.conftest import MODEL, World

LAW = "You are the lawyer of acme. " * 4


async def respond(world: World, tenant: str = "acme", **fields: Any) -> Any:
    arguments = {"model": MODEL, "input": "hello", **fields}
    extra = {k: arguments.pop(k) for k in list(arguments) if k in ("stop", "ignore_eos")}
    return await world.client(tenant).responses.create(**arguments, extra_body=extra)


def cached(response: Any) -> int:
    return response.usage.input_tokens_details.cached_tokens


async def test_another_tenants_response_does_not_exist(world: World) -> None:
    mine = await respond(world)
    with pytest.raises(openai.NotFoundError):
        await world.client("umbra").responses.retrieve(mine.id)
    with pytest.raises(openai.NotFoundError):
        await world.client("umbra").responses.cancel(mine.id)
    with pytest.raises(openai.BadRequestError) as refused:
        await respond(world, "umbra", previous_response_id=mine.id)
    assert refused.value.code == "previous_response_not_found"


async def test_tenants_and_end_users_never_hit_each_others_blocks(world: World) -> None:
    prompt = {"input": "the same long question of everybody in this house"}
    assert cached(await respond(world, **prompt, safety_identifier="ann")) == 0
    assert cached(await respond(world, **prompt, safety_identifier="ann")) > 0
    assert cached(await respond(world, **prompt, safety_identifier="bob")) == 0
    assert cached(await respond(world, **prompt)) == 0
    assert cached(await respond(world, "umbra", **prompt, safety_identifier="ann")) == 0
    assert cached(await respond(world, **prompt, user="bob")) > 0


async def test_a_cache_key_narrows_sharing_and_never_widens_it(world: World) -> None:
    prompt = {"input": "the same long question of everybody in this house"}
    await respond(world, **prompt)
    assert cached(await respond(world, **prompt, prompt_cache_key="a")) == 0
    assert cached(await respond(world, **prompt, prompt_cache_key="a")) > 0
    assert cached(await respond(world, "umbra", **prompt, prompt_cache_key="a")) == 0


async def test_users_of_a_tenant_share_its_registered_prompt_and_nothing_after(
    world: World,
) -> None:
    await world.register("acme", "law", LAW)
    await respond(world, prompt={"id": "law"}, safety_identifier="ann", input="a secret " * 9)
    for fields in (
        {"prompt": {"id": "law"}},
        {"instructions": LAW},
        {"input": [{"role": "system", "content": LAW}, {"role": "user", "content": "x"}]},
    ):
        hits = cached(await respond(world, **fields, safety_identifier=f"not ann: {fields}"))
        shared = world.engine.requests[-1].namespaces.shared_tokens
        assert hits == shared // 16 * 16 > 0
        assert shared == len(
            _ids(world, f"<|im_start|>system\n{LAW}<|im_end|>\n<|im_start|>user\n")
        )
    assert cached(await respond(world, "umbra", instructions=LAW)) == 0
    assert world.engine.requests[-1].namespaces.shared_tokens == 0


async def test_only_the_part_before_the_first_variable_is_shared(world: World) -> None:
    await world.register("acme", "greet", "You help customers of {{shop}} in {{city}}.")
    reference = {"id": "greet", "variables": {"shop": "Ada's", "city": "Ulm"}}
    await respond(world, prompt=reference)
    request = world.engine.requests[-1]
    text = "You help customers of Ada's in Ulm."
    assert world.engine.tokenizer.decode(request.prompt).startswith(f"<|im_start|>system\n{text}")
    head = _ids(world, "<|im_start|>system\nYou help customers of ")
    assert request.namespaces.shared_tokens == len(head)


@pytest.mark.parametrize(
    ("variables", "param"),
    [
        ({"shop": "x"}, "prompt.variables.city"),
        ({"shop": "x", "city": "y", "z": ""}, "prompt.variables.z"),
    ],
)
async def test_prompt_variables_must_match(
    world: World, variables: dict[str, str], param: str
) -> None:
    await world.register("acme", "greet", "You help customers of {{shop}} in {{city}}.")
    with pytest.raises(openai.BadRequestError) as refused:
        await respond(world, prompt={"id": "greet", "variables": variables})
    assert refused.value.param == param


async def test_a_named_version_is_served(world: World) -> None:
    await world.register("acme", "law", "old")
    await world.register("acme", "law", "new")
    await respond(world, prompt={"id": "law", "version": "1"})
    assert "old" in world.engine.tokenizer.decode(world.engine.requests[-1].prompt)
    await respond(world, prompt={"id": "law"})
    assert "new" in world.engine.tokenizer.decode(world.engine.requests[-1].prompt)


async def test_a_continuation_extends_the_ids_and_hits_the_answer_too(world: World) -> None:
    first = await respond(world, instructions="Be kind.", safety_identifier="ann")
    before = world.engine.requests[-1]
    second = await respond(world, input="more", previous_response_id=first.id)
    after = world.engine.requests[-1]
    so_far = [*before.prompt, *_ids(world, "You said: hello<|im_end|>")]
    assert after.prompt[: len(so_far)] == so_far
    text = world.engine.tokenizer.decode(after.prompt)
    assert text.endswith(
        "You said: hello<|im_end|>\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n"
    )
    assert cached(second) == len(so_far) // 16 * 16


@pytest.mark.parametrize("ending", [{"max_output_tokens": 5}, {"stop": "said"}])
async def test_an_answer_without_its_end_token_gets_it_from_the_template(
    world: World, ending: dict[str, Any]
) -> None:
    first = await respond(world, **ending)
    await respond(world, input="more", previous_response_id=first.id)
    text = world.engine.tokenizer.decode(world.engine.requests[-1].prompt)
    assert text.count("<|im_end|>\n<|im_start|>user\nmore") == 1
    assert "<|im_end|><|im_end|>" not in text
    assert f"You s{'aid' if 'stop' in ending else ''}<|im_end|>" in text


async def test_a_continued_conversation_keeps_its_instructions(world: World) -> None:
    first = await respond(world, instructions="Be kind.")
    again = {"previous_response_id": first.id, "instructions": "Be kind."}
    assert (await respond(world, **again)).status == "completed"
    with pytest.raises(openai.BadRequestError) as refused:
        await respond(world, previous_response_id=first.id, instructions="Be rude.")
    assert refused.value.param == "instructions"


async def test_the_head_of_a_prompt_does_not_depend_on_what_follows(world: World) -> None:
    template = ChatTemplate(world.engine.tokenizer)
    head = await template.head_ids("abc", whole=True)
    for user in ("", "0", "x", "é", " y"):
        messages: Any = [{"role": "system", "content": "abc"}, {"role": "user", "content": user}]
        ids = await template.prompt_ids(messages, "input")
        assert common_prefix(head, ids) == len(head)


def _ids(world: World, text: str) -> list[int]:
    return list(world.engine.tokenizer(text, add_special_tokens=False)["input_ids"])
