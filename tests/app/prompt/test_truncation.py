"""Conversations that are too long for the context, where turns may be left out of them."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.prompt.chat_template import Message
from app.prompt.truncation import without_middle, without_middle_ids
from tests.app.conftest import World

CONTEXT = 2048
_texts = st.text("ab", max_size=30)


def turns(lengths: list[int]) -> list[Message]:
    """A user's texts, each of which names its turn, and answers."""
    said: list[Message] = []
    for number, length in enumerate(lengths):
        said.append({"role": "user", "content": f"{number}.".ljust(length, "x")})
        said.append({"role": "assistant", "content": f"answer {number}"})
    return said[:-1]


def count(message: Message) -> int:
    return len(message["content"])


@given(st.lists(st.integers(1, 60), min_size=1, max_size=20), st.integers(1, 400))
def test_whole_turns_go_from_the_middle_and_what_stays_fits(lengths: list[int], room: int) -> None:
    system: Message = {"role": "system", "content": "system"}
    messages = [system, *turns(lengths)]
    kept = without_middle(messages, room, count)
    assert kept[:3] == messages[:3], "the head: the system text and the first turn"
    assert kept[-1] == messages[-1]
    tail = len(kept) - 3
    assert tail <= 0 or kept[3:] == messages[-tail:]
    assert len(kept) % 2 == 0
    needed = {id(one) for one in (*messages[:3], messages[-1])}
    assert sum(map(count, kept)) <= room or {id(one) for one in kept} == needed


def test_the_same_turns_are_left_out_for_a_while() -> None:
    lengths = [40] * 60
    firsts = []
    for length in range(12, 60):
        kept = without_middle(turns(lengths[:length]), 400, count)
        firsts.append(kept[2]["content"])
    assert len(set(firsts)) < len(firsts) / 2


@given(st.lists(st.tuples(st.integers(2, 30), st.booleans()), min_size=1, max_size=12), st.data())
def test_ids_are_joined_where_turns_begin(
    parts: list[tuple[int, bool]], data: st.DataObject
) -> None:
    """Each turn is its number, many times; it ends with 0, by the answer or before what follows."""
    ids, starts, pending = [], [], False
    for number, (length, ended) in enumerate(parts, 1):
        starts.append(len(ids))
        ids += [0] * pending + [number] * length + [0] * ended
        pending = not ended
    starts.pop(0)
    room = data.draw(st.integers(1, len(ids)))
    kept, moved = without_middle_ids(ids, starts, room, {0})
    turns_left = [one for one in "".join(map(chr, kept)).split("\0") if one]
    numbers = [ord(one[0]) for one in turns_left]
    assert [len(set(one)) for one in turns_left] == [1] * len(numbers), "none runs into another"
    assert "\0\0" not in "".join(map(chr, kept))
    assert [len(one) for one in turns_left] == [parts[number - 1][0] for number in numbers]
    assert numbers == [1, *range(len(parts) + 2 - len(numbers), len(parts) + 1)]
    assert [kept[start : start + 2].count(number) > 0 for start, number in zip(
        moved, numbers[1:], strict=True)] == [True] * len(moved)  # fmt: skip


async def ask(world: World, **fields: Any) -> httpx.Response:
    async with httpx.AsyncClient(base_url=world.base_url, headers=world.headers()) as http:
        return await http.post("/v1/responses", json=fields)


def prompt(world: World) -> str:
    return str(world.engine.tokenizer.decode(world.engine.requests[-1].prompt))


@pytest.mark.parametrize("asked", [{}, {"max_output_tokens": 900}])
async def test_a_conversation_that_is_too_long_loses_turns(
    world: World, asked: dict[str, int]
) -> None:
    said: Any = [{"role": "system", "content": "Be kind."}, *turns([100] * 40)]
    refused = await ask(world, input=said, **asked)
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    answer = (await ask(world, input=said, truncation="auto", **asked)).json()
    assert answer["truncation"] == "auto"
    text = prompt(world)
    assert "Be kind." in text
    assert "user\n0.xxx" in text
    assert "user\n39.xxx" in text
    assert "user\n1.xxx" not in text
    room = CONTEXT - asked.get("max_output_tokens", CONTEXT // 8)
    assert room // 2 < len(world.engine.requests[-1].prompt) <= room


async def test_what_fits_loses_nothing(world: World) -> None:
    said: Any = turns([50] * 10)
    await ask(world, input=said)
    await ask(world, input=said, truncation="auto")
    first, second = (request.prompt for request in world.engine.requests)
    assert first == second


async def test_a_turn_that_is_too_long_by_itself_is_refused(world: World) -> None:
    answer = await ask(world, input="x" * 3000, truncation="auto")
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    many = "x" * 100_000
    answer = await ask(world, input=[*turns([10, 10]), {"role": "user", "content": many}],
                       truncation="auto")  # fmt: skip
    assert answer.json()["error"]["code"] == "context_length_exceeded"


async def test_a_continued_conversation_loses_turns_too(world: World) -> None:
    world.engine.answer = "yes"
    answer = (await ask(world, input="0." + "x" * 200, instructions="Be kind.")).json()
    for number in range(1, 20):
        options = {} if number % 3 else {"max_output_tokens": 2}  # an answer that is cut off
        answer = (
            await ask(
                world,
                input=f"{number}." + "x" * 200,
                previous_response_id=answer["id"],
                truncation="auto",
                **options,
            )
        ).json()
        text = prompt(world)
        assert text.startswith("<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n0.xx")
        assert f"user\n{number}.xx" in text
        assert "<|im_end|><|im_end|>" not in text
        assert text.count("<|im_start|>user") == text.count("x<|im_end|>")
        assert len(world.engine.requests[-1].prompt) <= CONTEXT
    assert "user\n1.xx" not in text
