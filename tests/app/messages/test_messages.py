"""`POST /v1/messages`, as Anthropic's own client speaks it."""

from __future__ import annotations

import anthropic
import httpx
import pytest

from tests.app.conftest import MODEL, World
from tests.app.messages.asking import ASKED, client, create, prompt, stream


async def test_a_message_is_whole(world: World) -> None:
    message = await create(world)
    assert (message.type, message.role, message.model) == ("message", "assistant", MODEL)
    assert [block.text for block in message.content] == ["You said: hello"]
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert message.usage.input_tokens == len(world.engine.requests[-1].prompt)
    assert message.usage.output_tokens == len("You said: hello") + 1
    assert message.id.startswith("msg_")


async def test_a_text_has_no_field_that_clients_do_not_expect_to_be_null(world: World) -> None:
    message = await create(world)
    assert message.content[0].to_dict() == {"type": "text", "text": "You said: hello"}


async def test_a_stream_is_the_same_message_in_events(world: World) -> None:
    whole = await create(world)
    events, message = await stream(world)
    kinds = [event.type for event in events if event.type != "text"]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert [block.text for block in message.content] == [block.text for block in whole.content]
    assert message.stop_reason == "end_turn"
    assert message.usage.output_tokens == whole.usage.output_tokens
    assert events[0].message.content == []


async def test_a_system_prompt_and_turns_are_one_conversation(world: World) -> None:
    texts = [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]
    turns = [ASKED, {"role": "assistant", "content": texts}, {"role": "user", "content": "again"}]
    await create(world, system=texts, messages=turns)
    assert prompt(world) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n"
        "<|im_start|>assistant\nBe brief.<|im_end|>\n<|im_start|>user\nagain<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


async def test_what_a_side_says_in_several_turns_is_one(world: World) -> None:
    system = {"role": "system", "content": "Be brief."}
    again = {"role": "user", "content": [{"type": "text", "text": " again"}]}
    await create(world, messages=[system, ASKED, again])
    assert prompt(world) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhello again<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


async def test_nothing_is_generated_where_only_the_prompt_is_to_be_computed(world: World) -> None:
    message = await create(world, max_tokens=0)
    assert (message.content, message.stop_reason) == ([], "max_tokens")
    _, streamed = await stream(world, max_tokens=0)
    assert (streamed.content, streamed.usage.output_tokens) == ([], 0)


async def test_what_ends_an_answer_is_told(world: World) -> None:
    message = await create(world, stop_sequences=["never", "said"])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "said")
    assert message.content[0].text == "You "
    assert (await create(world, max_tokens=3)).stop_reason == "max_tokens"
    _, streamed = await stream(world, stop_sequences=["said"])
    assert (streamed.stop_reason, streamed.stop_sequence) == ("stop_sequence", "said")


async def test_sampling_and_the_end_user_are_those_of_the_request(world: World) -> None:
    sampling = {"temperature": 0.5, "top_p": 0.9, "top_k": 7}
    await create(world, extra_body=sampling, metadata={"user_id": "ann"})
    await create(world, metadata={"user_id": "bob"})
    first, second = world.engine.requests[-2:]
    assert (first.sampling.temperature, first.sampling.top_p, first.sampling.top_k) == (0.5, 0.9, 7)
    assert first.namespaces.private_key != second.namespaces.private_key


async def test_tokens_are_counted_without_an_answer(world: World) -> None:
    asked = len(world.engine.requests)
    async with client(world) as asking:
        count = await asking.messages.count_tokens(model=MODEL, messages=[ASKED], system="Hm.")
    assert len(world.engine.requests) == asked
    message = await create(world, system="Hm.")
    assert count.input_tokens == message.usage.input_tokens


async def test_a_key_comes_in_either_header_and_not_as_two(world: World) -> None:
    body = {"model": MODEL, "max_tokens": 5, "messages": [ASKED]}
    key = world.keys["acme"]
    async with httpx.AsyncClient(base_url=world.base_url) as plain:

        async def status(**headers: str) -> int:
            names = {name.replace("_", "-"): value for name, value in headers.items()}
            return (await plain.post("/v1/messages", json=body, headers=names)).status_code

        assert await status(x_api_key=key) == 200
        assert await status(authorization=f"Bearer {key}") == 200
        assert await status(authorization=f"Bearer {key}", x_api_key=key) == 200
        assert await status(authorization=f"Bearer {key}", x_api_key="pw_other") == 400
        assert await status(x_api_key="pw_other") == 401
        assert await status() == 401


async def test_errors_have_the_shape_that_its_clients_know(world: World) -> None:
    with pytest.raises(anthropic.BadRequestError) as refused:
        await create(world, messages=[{"role": "user", "content": [{"type": "document"}]}])
    body = refused.value.body
    assert isinstance(body, dict)
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    assert "'messages[0].content[0]': only text and images are served" in body["error"]["message"]
    assert refused.value.request_id == body["request_id"]
    with pytest.raises(anthropic.NotFoundError):
        await create(world, model="claude")
    with pytest.raises(anthropic.AuthenticationError):
        async with anthropic.AsyncAnthropic(api_key="pw_no", base_url=world.base_url) as asking:
            await asking.messages.create(model=MODEL, max_tokens=1, messages=[ASKED])
    await world.limit("acme", requests_per_minute=1)
    await create(world)
    with pytest.raises(anthropic.RateLimitError):
        await create(world)


async def test_an_engine_that_fails_ends_a_stream_with_an_error(world: World) -> None:
    world.engine.die_after = 3
    with pytest.raises(anthropic.APIStatusError, match="_error"):
        await stream(world)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"messages": [ASKED, {"role": "assistant", "content": "I"}]}, "messages[1]"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "document"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0]"),
        ({"extra_body": {"mcp_servers": [{"url": "https://x"}]}}, "mcp_servers"),
        ({"extra_body": {"container": "c"}}, "container"),
        ({"extra_body": {"fallbacks": "default"}}, "'fallbacks' is not supported"),
        ({"extra_body": {"temperatur": 1}}, "temperatur"),
        ({"extra_headers": {"anthropic-version": "latest"}}, "latest"),
        ({"thinking": {"type": "enabled", "budget_tokens": 5000}}, "thinking.budget_tokens"),
    ],
)
async def test_what_is_not_served_is_refused_by_name(
    world: World, fields: dict[str, object], named: str
) -> None:
    with pytest.raises(anthropic.BadRequestError) as refused:
        await create(world, **fields)
    assert named in refused.value.message


async def test_clients_told_that_no_conversation_is_held_send_it_whole(world: World) -> None:
    async with client(world) as asking:
        thread = asking.beta.messages.thread(
            model=MODEL, max_tokens=50, unsupported_request_behavior="continue_unthreaded"
        )
        await thread.send(ASKED)
        await thread.send({**ASKED, "content": "again"})
    assert "hello<|im_end|>" in prompt(world)
    assert "again<|im_end|>" in prompt(world)


async def test_batches_are_refused_in_the_apis_own_words(world: World) -> None:
    async with client(world) as asking:
        with pytest.raises(anthropic.NotFoundError, match="Batches of messages are not served"):
            await asking.messages.batches.list()


async def test_an_answer_of_another_tenants_user_never_shares_a_block(world: World) -> None:
    await create(world)
    async with client(world, "umbra") as asking:
        other = await asking.messages.create(model=MODEL, max_tokens=9, messages=[ASKED])
    assert other.usage.cache_read_input_tokens == 0
    assert (await create(world)).usage.cache_read_input_tokens > 0
