"""The unmodified `openai` package against the service, over real sockets."""

from __future__ import annotations

import asyncio

import openai
import pytest

from tests.app.conftest import MODEL, World

ORDER = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
]


async def test_a_response_is_created_whole(world: World) -> None:
    response = await world.client().responses.create(model=MODEL, input="hello")
    assert response.output_text == "You said: hello"
    assert response.status == "completed"
    assert response.usage is not None
    assert response.usage.output_tokens == len("You said: hello") + 1
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens


async def test_a_response_streams_its_events_in_order(world: World) -> None:
    stream = await world.client().responses.create(model=MODEL, input="hello", stream=True)
    events = [event async for event in stream]
    kinds = [event.type for event in events]
    assert list(dict.fromkeys(kinds)) == ORDER
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == "You said: hello"


async def test_the_stream_helper_assembles_the_final_response(world: World) -> None:
    async with world.client().responses.stream(model=MODEL, input="hello") as stream:
        async for _ in stream:
            pass
        final = await stream.get_final_response()
    assert final.output_text == "You said: hello"


async def test_the_websocket_connection_of_the_client_chats(world: World) -> None:
    async with world.client().responses.connect() as connection:
        await connection.response.create(model=MODEL, input="one")
        first = [event async for event in _until_terminal(connection)]
        assert list(dict.fromkeys(event.type for event in first)) == ORDER
        await connection.response.create(
            model=MODEL, input="two", previous_response_id=first[-1].response.id
        )
        second = [event async for event in _until_terminal(connection)]
    assert second[-1].response.output[0].content[0].text == "You said: two"
    assert second[-1].response.usage.input_tokens_details.cached_tokens > 0


async def _until_terminal(connection):
    async for event in connection:
        yield event
        if event.type in ("response.completed", "response.incomplete", "response.failed", "error"):
            return


def _sync_session(world: World) -> tuple[str, str, str, str]:
    client = world.sync_client()
    whole = client.responses.create(model=MODEL, input="a").output_text
    with client.responses.stream(model=MODEL, input="b") as stream:
        streamed = stream.get_final_response().output_text
    messages = [{"role": "user", "content": "c"}]
    chunks = client.chat.completions.create(model=MODEL, messages=messages, stream=True)
    chat = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    with client.responses.connect() as connection:
        connection.response.create(model=MODEL, input="d")
        for event in connection:
            if event.type == "response.completed":
                break
    return whole, streamed, chat, event.response.output[0].content[0].text


async def test_the_synchronous_client_is_served_the_same(world: World) -> None:
    answers = await asyncio.to_thread(_sync_session, world)
    assert answers == tuple(f"You said: {letter}" for letter in "abcd")


HELLO = [{"role": "user", "content": "hello"}]


def _sync_choices(world: World) -> list[list[str]]:
    create = world.sync_client().chat.completions.create
    several = create(model=MODEL, messages=HELLO, n=3)
    best = create(model=MODEL, messages=HELLO, n=1, extra_body={"best_of": 3})
    beams = create(model=MODEL, messages=HELLO, n=2, extra_body={"num_beams": 3})
    assert [choice.score for choice in beams.choices] == [-0.25, -0.5]
    chunks = create(model=MODEL, messages=HELLO, n=3, stream=True)
    streamed = ["", "", ""]
    for chunk in chunks:
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    answers = [[c.message.content for c in whole.choices] for whole in (several, best, beams)]
    return [*answers, streamed]


async def test_several_answers_reach_the_synchronous_client(world: World) -> None:
    world.engine.answers = ["one", "two", "three"]
    world.engine.logprobs = [-2.0, -1.0, -3.0]
    answers = await asyncio.to_thread(_sync_choices, world)
    assert answers == [["one", "two", "three"], ["two"], ["one", "two"], ["one", "two", "three"]]


async def test_the_stream_helper_assembles_each_of_several_answers(world: World) -> None:
    world.engine.answers = ["one", "two and more", ""]
    completions = world.client().chat.completions
    async with completions.stream(
        model=MODEL, messages=HELLO, n=3, stream_options={"include_usage": True}
    ) as stream:
        async for _ in stream:
            pass
        final = await stream.get_final_completion()
    assert [choice.message.content for choice in final.choices] == ["one", "two and more", ""]
    assert [choice.finish_reason for choice in final.choices] == ["stop"] * 3
    assert final.usage is not None
    assert final.usage.completion_tokens == len("onetwo and more") + 3


async def test_an_extension_that_cannot_go_with_the_rest_is_a_bad_request(world: World) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await world.client().chat.completions.create(
            model=MODEL, messages=HELLO, stream=True, extra_body={"num_beams": 2}
        )
    assert (refused.value.param, refused.value.code) == ("stream", "invalid_value")


async def test_a_wrong_key_is_refused_on_http_and_on_the_socket(world: World) -> None:
    client = openai.AsyncOpenAI(base_url=f"{world.base_url}/v1", api_key="no", max_retries=0)
    with pytest.raises(openai.AuthenticationError) as refused:
        await client.responses.create(model=MODEL, input="x")
    assert refused.value.code == "invalid_api_key"
    with pytest.raises(Exception, match="401"):
        async with client.responses.connect():
            pass


async def test_models_are_listed(world: World) -> None:
    models = [model.id async for model in world.client().models.list()]
    assert models == [MODEL]
    assert (await world.client().models.retrieve(MODEL)).id == MODEL
    with pytest.raises(openai.NotFoundError):
        await world.client().models.retrieve("other")


async def test_a_stored_response_is_retrieved(world: World) -> None:
    created = await world.client().responses.create(model=MODEL, input="x", metadata={"a": "b"})
    fetched = await world.client().responses.retrieve(created.id)
    assert fetched == created
    assert fetched.metadata == {"a": "b"}


async def test_a_failure_mid_stream_raises_in_the_client(world: World) -> None:
    world.engine.die_after = 3
    stream = await world.client().chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "x"}], stream=True
    )
    with pytest.raises(openai.APIError, match="the engine died"):
        async for _ in stream:
            pass
    events = [
        event
        async for event in await world.client().responses.create(
            model=MODEL, input="x", stream=True
        )
    ]
    assert events[-1].type == "response.failed"
    assert events[-1].response.error.code == "server_error"


async def test_an_unavailable_engine_is_a_503(world: World) -> None:
    world.engine.down = True
    with pytest.raises(openai.InternalServerError) as refused:
        await world.client().responses.create(model=MODEL, input="x", stream=True)
    assert refused.value.status_code == 503
    assert refused.value.code == "engine_unavailable"
    assert refused.value.response.headers["retry-after"]
