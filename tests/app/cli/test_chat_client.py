"""`partywall chat` as a process with a terminal or a pipe, against a running service."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator

import pytest

from app.cli.chat import ChatError, socket_url
from tests.app.conftest import World

_ESCAPES = re.compile(rb"\x1b\[[?0-9;]*[a-zA-Z]")


def command(url: str, key: str, *options: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "app.cli",
        "chat",
        "--url",
        url,
        "--api-key",
        key,
        *options,
    ]


async def piped(
    world: World, text: str, *options: str, key: str | None = None
) -> tuple[int, str, str]:
    """Exit status and what it printed, for `text` on standard input."""
    arguments = command(world.base_url, key or world.keys["acme"], *options)
    process = await asyncio.create_subprocess_exec(*arguments, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    async with asyncio.timeout(30):
        out, err = await process.communicate(text.encode())
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


class Terminal:
    """The client in a terminal of its own."""

    def __init__(self, process: Process, descriptor: int) -> None:
        self.process = process
        self.shown = b""
        self._descriptor = descriptor

    def type(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    async def until(self, text: str) -> None:
        """Wait until `text` was shown, and forget everything up to its end."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(20):
            while text.encode() not in self.shown:
                readable = asyncio.Event()
                loop.add_reader(self._descriptor, readable.set)
                try:
                    await readable.wait()
                finally:
                    loop.remove_reader(self._descriptor)
                self.shown += _ESCAPES.sub(b"", os.read(self._descriptor, 65536))
        self.shown = self.shown.partition(text.encode())[2]

    async def exit_status(self) -> int:
        async with asyncio.timeout(20):
            return await self.process.wait()


@pytest.fixture
async def terminal(world: World) -> AsyncIterator[Terminal]:
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *command(world.base_url, world.keys["acme"]),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env=os.environ | {"TERM": "dumb"},
    )
    os.close(theirs)
    yield Terminal(process, ours)
    if process.returncode is None:
        process.kill()
        await process.wait()
    os.close(ours)


async def test_piped_lines_are_questions_of_one_conversation(world: World) -> None:
    status, out, err = await piped(world, "one\n\ntwo\n")
    assert (status, out) == (0, "You said: one\nYou said: two\n")
    assert "error" not in err
    first, second = (request.prompt for request in world.engine.requests)
    assert second[: len(first)] == first


async def test_reset_starts_a_new_conversation(world: World) -> None:
    assert (await piped(world, "one\n/reset\none\n"))[0] == 0
    first, second = (request.prompt for request in world.engine.requests)
    assert first == second


async def test_exit_leaves_the_rest_of_the_input_unasked(world: World) -> None:
    status, out, _ = await piped(world, "one\n/exit\ntwo\n")
    assert status == 0
    assert out == "You said: one\n"


async def test_options_reach_the_service(world: World) -> None:
    options = ["--system", "Be brief.", "--user", "u1", "--max-output-tokens", "5"]
    status, _, _ = await piped(world, "one\ntwo\n", *options)
    assert status == 0
    head = world.engine.tokenizer.decode(world.engine.requests[0].prompt)
    assert head.startswith("<|im_start|>system\nBe brief.<|im_end|>")
    assert {request.sampling.max_tokens for request in world.engine.requests} == {5}
    private = world.engine.requests[0].namespaces.private_key
    assert private == world.tenants["acme"].user_key("u1")


async def test_an_error_ends_piped_input_with_status_one(world: World) -> None:
    status, out, err = await piped(world, "one\ntwo\n", "--model", "other")
    assert status == 1
    assert out == "" or out.isspace()
    assert "The model 'other' does not exist" in err
    assert "Traceback" not in err


async def test_a_wrong_key_is_told_in_one_line(world: World) -> None:
    status, _, err = await piped(world, "one\n", key="pw_wrong.key")
    assert status == 1
    assert "401" in err
    assert "Traceback" not in err


async def test_a_service_that_is_not_there_is_told_in_one_line(world: World) -> None:
    process = await asyncio.create_subprocess_exec(
        *command("http://127.0.0.1:9", "k"), stdin=PIPE, stdout=PIPE, stderr=PIPE
    )
    _, err = await process.communicate(b"one\n")
    assert process.returncode == 1
    assert b"cannot reach" in err
    assert b"Traceback" not in err


async def test_a_terminal_shows_the_answer_and_what_it_cost(terminal: Terminal) -> None:
    await terminal.until("> ")
    terminal.type("hello\n")
    await terminal.until("You said: hello")
    await terminal.until("cached")
    await terminal.until("> ")
    terminal.type("\x04")
    assert await terminal.exit_status() == 0


async def test_ctrl_c_cancels_the_answer_and_not_the_program(
    world: World, terminal: Terminal
) -> None:
    world.engine.hold_after = 5
    await terminal.until("> ")
    terminal.type("a long one\n")
    await terminal.until("You s")
    terminal.process.send_signal(signal.SIGINT)
    await terminal.until("cancelled")
    await terminal.until("> ")
    assert not world.engine.active
    world.engine.release()
    terminal.type("again\n")
    await terminal.until("You said: again")
    await terminal.until("> ")
    terminal.type("/exit\n")
    assert await terminal.exit_status() == 0


async def test_ctrl_c_at_the_prompt_leaves_the_program_running(terminal: Terminal) -> None:
    await terminal.until("> ")
    prompted = asyncio.create_task(terminal.until("> "))
    while not prompted.done():  # readline shows its prompt a moment before it heeds signals
        terminal.process.send_signal(signal.SIGINT)
        await asyncio.wait([prompted], timeout=0.5)
    await prompted
    terminal.type("hello\n")
    await terminal.until("You said: hello")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:8000", "ws://127.0.0.1:8000/v1/responses"),
        ("http://127.0.0.1:8000/v1/", "ws://127.0.0.1:8000/v1/responses"),
        ("https://chat.example/base", "wss://chat.example/base/v1/responses"),
        ("ws://[::1]:1/v1/responses", "ws://[::1]:1/v1/responses"),
    ],
)
def test_any_form_of_the_url_leads_to_the_socket(url: str, expected: str) -> None:
    assert socket_url(url) == expected


def test_what_is_no_url_is_refused() -> None:
    with pytest.raises(ChatError, match="is not a URL"):
        socket_url("localhost")
