"""What a conversation's prompt is made of: registered texts, earlier ids, new messages."""

from __future__ import annotations

import tracemalloc
from typing import Any

import openai
import pytest

from app.prompt.breakpoints import num_common
from tests.app.conftest import MODEL, World, chat_template


async def respond(world: World, **fields: Any) -> Any:
    arguments = {"model": MODEL, "input": "hello", **fields}
    extra = {k: arguments.pop(k) for k in list(arguments) if k == "stop"}
    return await world.client().responses.create(**arguments, extra_body=extra)


def cached(response: Any) -> int:
    return response.usage.input_tokens_details.cached_tokens


async def test_a_value_that_stands_in_many_places_is_counted_in_all_of_them_and_written_in_none(
    world: World,
) -> None:
    await world.register("acme", "echo", "{{word}} " * 2000)
    prompt: Any = {"id": "echo", "variables": {"word": "x" * 50_000}}
    tracemalloc.start()
    try:
        with pytest.raises(openai.BadRequestError) as error:
            await respond(world, prompt=prompt)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (error.value.param, error.value.code) == ("prompt.variables", "context_length_exceeded")
    assert peak_bytes < 20_000_000


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
    kept = world.engine.requests[-1].prompt
    await respond(world, previous_response_id=first.id)
    assert world.engine.requests[-1].prompt == kept


async def test_other_instructions_are_those_of_all_that_was_said(world: World) -> None:
    first = await respond(world, instructions="Be kind.", input="one")
    second = await respond(world, previous_response_id=first.id, input="two")
    third = await respond(
        world, previous_response_id=second.id, instructions="Be rude.", input="three"
    )
    assert text_of_prompt(world) == (
        "<|im_start|>system\nBe rude.<|im_end|>\n<|im_start|>user\none<|im_end|>\n"
        "<|im_start|>assistant\nYou said: one<|im_end|>\n<|im_start|>user\ntwo<|im_end|>\n"
        "<|im_start|>assistant\nYou said: two<|im_end|>\n<|im_start|>user\nthree<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    await respond(world, previous_response_id=third.id, input="four")
    assert text_of_prompt(world).startswith("<|im_start|>system\nBe rude.<|im_end|>\n")
    await respond(world, previous_response_id=second.id, input="three")
    assert text_of_prompt(world).startswith("<|im_start|>system\nBe kind.<|im_end|>\n")


async def test_other_tools_are_told_of_under_the_same_instructions(world: World) -> None:
    tools = [{"type": "function", "name": name, "parameters": {}} for name in ("see", "hear")]
    first = await respond(world, instructions="Be kind.", input="one", tools=tools[:1])
    await respond(world, previous_response_id=first.id, input="two", tools=tools[1:])
    assert '"hear"' in text_of_prompt(world)
    assert '"see"' not in text_of_prompt(world)
    assert text_of_prompt(world).count("Be kind.") == 1
    said = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "one"}]
    first = await respond(world, input=said, tools=tools[:1])
    await respond(world, previous_response_id=first.id, input="two", tools=tools[1:])
    assert text_of_prompt(world).count("Be kind.") == 1


async def test_a_registered_prompt_may_take_the_place_of_another(world: World) -> None:
    for name, text in (("kind", "Be kind. " * 8), ("rude", "Be rude. " * 8)):
        await world.register("acme", name, text)
    first = await respond(world, prompt={"id": "kind"}, input="one")
    second = await respond(world, previous_response_id=first.id, prompt={"id": "rude"}, input="two")
    assert text_of_prompt(world).startswith("<|im_start|>system\nBe rude.")
    assert second.usage.input_tokens_details.cached_tokens >= 64


async def test_a_chain_with_a_gap_cannot_be_told_anew(world: World) -> None:
    first = await respond(world, instructions="Be kind.", input="one")
    second = await respond(world, previous_response_id=first.id, input="two")
    await world.client().responses.delete(first.id)
    assert (await respond(world, previous_response_id=second.id)).status == "completed"
    with pytest.raises(openai.BadRequestError) as refused:
        await respond(world, previous_response_id=second.id, instructions="Be rude.")
    assert refused.value.code == "previous_response_not_found"


async def test_the_prefix_of_a_prompt_does_not_depend_on_what_follows(world: World) -> None:
    template = chat_template(world.engine.tokenizer)
    prefix = await template.prefix_ids("acme", "abc", whole=True)
    for user in ("", "0", "x", "é", " y"):
        messages: Any = [{"role": "system", "content": "abc"}, {"role": "user", "content": user}]
        ids = await template.prompt_ids("acme", messages, "input")
        assert num_common(prefix, ids) == len(prefix)


def text_of_prompt(world: World) -> str:
    """What the engine was asked last."""
    return str(world.engine.tokenizer.decode(world.engine.requests[-1].prompt))


def _ids(world: World, text: str) -> list[int]:
    return list(world.engine.tokenizer(text, add_special_tokens=False)["input_ids"])
