"""A chat in the terminal, over the WebSocket of the Responses API."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec
from rich.console import Console
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.sync.client import ClientConnection, connect

HELP = "/reset starts a new conversation, /exit or Ctrl-D leaves, Ctrl-C cancels an answer."
_POLL_SECONDS = 0.1
_TERMINAL = ("response.completed", "response.incomplete", "response.failed")


class ChatError(Exception):
    """What the user is told instead of an answer."""

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class ChatOptions:
    """Whom to talk to, and what goes into every request."""

    url: str
    api_key: str
    model: str | None = None
    system: str | None = None
    prompt: str | None = None
    user: str | None = None
    max_output_tokens: int | None = None


@dataclass(frozen=True)
class Answer:
    """How an answer ended. `status` is the response's: completed, incomplete or cancelled."""

    status: str
    cached_tokens: int
    input_tokens: int
    output_tokens: int
    seconds: float


@dataclass
class ChatSession:
    """One conversation. It survives a dropped connection: the server stores the responses."""

    options: ChatOptions
    _socket: ClientConnection | None = field(default=None, init=False)
    _previous: str | None = field(default=None, init=False)

    def open(self) -> None:
        """Connect, if not connected. Raises `ChatError`."""
        if self._socket is not None:
            return
        headers = {"Authorization": f"Bearer {self.options.api_key}"}
        try:
            self._socket = connect(
                responses_url(self.options.url),
                additional_headers=headers,
                compression=None,
                max_size=None,
            )
        except InvalidStatus as error:
            status = error.response.status_code
            if status == 401:
                raise ChatError("the API key is not valid (HTTP 401)", "invalid_api_key") from None
            raise ChatError(f"the service refused the connection with HTTP {status}") from None
        except (OSError, InvalidHandshake, InvalidURI, EOFError) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise ChatError(f"cannot reach {self.options.url}: {reason}") from None

    def close(self) -> None:
        """Disconnect."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def reset(self) -> None:
        """Forget the conversation."""
        self._previous = None

    def ask(
        self, question: str, show: Callable[[str], None], cancelled: Callable[[], bool]
    ) -> Answer:
        """Send `question`, pass the answer's text to `show` as it comes, return how it ended.

        `cancelled` is polled; once true, the answer is cancelled. Raises `ChatError`.
        """
        self._send(self._request(question))
        started = time.monotonic()
        told = False
        while True:
            event = self._next_event()
            if cancelled() and not told:
                self._send({"type": "response.cancel"})
                told = True
            kind = event.get("type")
            if kind == "response.output_text.delta":
                show(event["delta"])
            elif kind == "error":
                self._fail(event["error"], told)
            elif kind in _TERMINAL:
                return self._finish(event["response"], time.monotonic() - started)

    def _request(self, question: str) -> dict[str, Any]:
        options = self.options
        request: dict[str, Any] = {"type": "response.create", "input": question, "store": True}
        optional = {
            "model": options.model,
            "user": options.user,
            "max_output_tokens": options.max_output_tokens,
        }
        if self._previous is None:
            # Later turns keep the conversation's system text.
            optional["instructions"] = options.system
            optional["prompt"] = {"id": options.prompt} if options.prompt else None
        else:
            optional["previous_response_id"] = self._previous
        return request | {name: value for name, value in optional.items() if value is not None}

    def _send(self, message: dict[str, Any]) -> None:
        text = msgspec.json.encode(message).decode()
        for last_try in (False, True):
            self.open()
            assert self._socket is not None
            try:
                self._socket.send(text)
                return
            except ConnectionClosed:
                # Closed while the user was typing: the conversation goes on over a new one.
                self._socket = None
                if last_try:
                    raise ChatError("the service closed the connection") from None

    def _next_event(self) -> dict[str, Any]:
        """The next event, or an empty one after a moment without any."""
        assert self._socket is not None
        try:
            event: dict[str, Any] = msgspec.json.decode(self._socket.recv(timeout=_POLL_SECONDS))
            return event
        except TimeoutError:
            return {}
        except ConnectionClosed as error:
            self._socket = None
            code = error.rcvd.code if error.rcvd else 1006
            raise ChatError(f"the connection was lost during the answer (code {code})") from None

    def _fail(self, error: dict[str, Any], told: bool) -> None:
        code = error.get("code")
        if told and code == "response_not_found":
            return  # the answer had ended before the cancellation arrived
        if code == "previous_response_not_found":
            self.reset()
            raise ChatError("the service no longer has this conversation: a new one begins", code)
        raise ChatError(str(error.get("message")), code)

    def _finish(self, response: dict[str, Any], seconds: float) -> Answer:
        if response["status"] == "failed":
            raise ChatError(f"the answer failed: {response['error']['message']}", "server_error")
        self._previous = response["id"]
        usage = response["usage"]
        return Answer(
            status=response["status"],
            cached_tokens=usage["input_tokens_details"]["cached_tokens"],
            input_tokens=usage["input_tokens"],
            output_tokens=usage["output_tokens"],
            seconds=seconds,
        )


def responses_url(url: str) -> str:
    """The WebSocket of a service's URL: `http://host:8000` (with or without `/v1`)."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    scheme = {"http": "ws", "https": "wss"}.get(parts.scheme, parts.scheme)
    path = parts.path.rstrip("/").removesuffix("/v1")
    return urlunsplit((scheme, parts.netloc, f"{path}/v1/responses", "", ""))


def run_chat(options: ChatOptions) -> int:
    """Chat until the input ends; returns the exit status. Raises `ChatError` if it cannot begin.

    At a terminal it prompts, and an error ends one answer only. Otherwise every line of the input
    is a question, only the answers are printed, and the first error ends the chat with status 1.
    """
    interactive = sys.stdin.isatty()
    notes = Console(stderr=True, highlight=False)
    session = ChatSession(options)
    session.open()
    if interactive:
        notes.print(f"Connected to {options.url}. {HELP}", style="dim")
    try:
        for line in _terminal_lines(notes) if interactive else sys.stdin:
            question = line.strip()
            if question in ("/exit", "/quit"):
                break
            try:
                _handle(session, question, notes, interactive)
            except ChatError as error:
                notes.print(f"error: {error}", style="red")
                if not interactive:
                    return 1
    finally:
        session.close()
    return 0


def _handle(session: ChatSession, question: str, notes: Console, interactive: bool) -> None:
    if question == "/reset":
        session.reset()
        notes.print("A new conversation begins.", style="dim")
    elif question == "/help":
        notes.print(HELP, style="dim")
    elif question.startswith("/"):
        notes.print(f"unknown command. {HELP}", style="dim")
    elif question:
        with _ctrl_c_cancels() as cancelled:
            answer = session.ask(question, _show, cancelled)
        print(flush=True)
        if interactive:
            notes.print(_summary(answer), style="dim")


def _show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _summary(answer: Answer) -> str:
    rate = answer.output_tokens / answer.seconds if answer.seconds > 0 else 0.0
    ending = "" if answer.status == "completed" else f"{answer.status}, "
    return (
        f"({ending}{answer.output_tokens} tokens, {rate:.0f} tokens/s, "
        f"{answer.cached_tokens} of {answer.input_tokens} prompt tokens cached)"
    )


def _terminal_lines(notes: Console) -> Iterator[str]:
    import readline  # noqa: F401 - gives `input` history and line editing

    while True:
        try:
            yield input("> ")
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            notes.print("\nCtrl-D leaves.", style="dim")


@contextmanager
def _ctrl_c_cancels() -> Iterator[Callable[[], bool]]:
    """While an answer runs, Ctrl-C raises nothing: it is noted. A second one leaves the program."""
    pressed = False

    def note(_signal: int, _frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)
