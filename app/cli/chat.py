"""`partywall chat`: one conversation over the WebSocket API, streamed as it is written."""

from __future__ import annotations

import base64
import json
import mimetypes
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any
from urllib.parse import urlsplit, urlunsplit

import typer
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.sync.client import ClientConnection, connect

from app.cli.options import CommandError

HELP = """\
/image FILE   show a picture with the next question
/reset   start a new conversation
/help    show this
/exit    leave (so does Ctrl-D)
Ctrl-C   stop the answer"""

_TERMINAL = ("response.completed", "response.incomplete", "response.failed")
_POLL_SECONDS = 0.1
_OPEN_SECONDS = 10.0


class ChatError(CommandError):
    """The conversation cannot go on; the message says why."""


def socket_url(url: str) -> str:
    """The WebSocket of the Responses API for a service's URL, given with or without `/v1`.

    Raises `ChatError`.
    """
    parts = urlsplit(url)
    schemes = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
    if parts.scheme not in schemes or not parts.netloc:
        raise ChatError(f"{url!r} is not a URL such as http://127.0.0.1:8000")
    path = parts.path.rstrip("/").removesuffix("/responses").removesuffix("/v1")
    return urlunsplit((schemes[parts.scheme], parts.netloc, f"{path}/v1/responses", "", ""))


def data_url(file: Path) -> str:
    """A picture's file as the URL that a request has it in. Raises `ChatError`."""
    kind, _ = mimetypes.guess_type(file.name, strict=False)
    if kind is None or not kind.startswith("image/"):
        raise ChatError(f"{file} is named like no picture, such as photo.jpg")
    try:
        data = file.expanduser().read_bytes()
    except OSError as error:
        raise ChatError(f"{file} cannot be read: {error.strerror}") from None
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def _with_pictures(question: str, pictures: Sequence[str]) -> list[dict[str, Any]]:
    shown = [{"type": "input_image", "image_url": url} for url in pictures]
    return [{"role": "user", "content": [*shown, {"type": "input_text", "text": question}]}]


class Chat:
    """One conversation over one socket, which is opened again when it was lost between turns.

    `first` are fields of the request that begins it, `every` those of each one.
    """

    def __init__(
        self, url: str, api_key: str, first: Mapping[str, Any], every: Mapping[str, Any]
    ) -> None:
        self._url = socket_url(url)
        self._api_key = api_key
        self._first = first
        self._every = every
        self._socket: ClientConnection | None = None
        self._previous: str | None = None
        self._pictures: list[str] = []
        """Those that the next question comes with, as URLs."""

    def open(self) -> None:
        """Connect. Raises `ChatError`."""
        try:
            self._socket = connect(
                self._url,
                additional_headers={"Authorization": f"Bearer {self._api_key}"},
                compression=None,
                max_size=None,
                open_timeout=_OPEN_SECONDS,
            )
        except InvalidStatus as error:
            if error.response.status_code == 401:
                raise ChatError(
                    "the service does not know this API key (401); "
                    "'partywall tenant rotate-key TENANT' makes a new one"
                ) from None
            status = error.response.status_code
            raise ChatError(f"{self._url} answered with HTTP status {status}") from None
        except (OSError, TimeoutError) as error:
            raise ChatError(
                f"cannot reach {self._url} ({error}); is 'partywall serve' running there?"
            ) from None
        except (InvalidHandshake, InvalidURI) as error:
            raise ChatError(f"{self._url} does not speak WebSocket: {error}") from None

    def close(self) -> None:
        """Disconnect."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def reset(self) -> None:
        """Forget the conversation so far."""
        self._previous = None

    def show(self, file: Path) -> None:
        """Have the next question come with the picture in a file. Raises `ChatError`."""
        self._pictures.append(data_url(file))

    def ask(self, question: str, on_text: Callable[[str], None], stop: Interrupts) -> Answer:
        """Send one question, and pass on the text of its answer as it comes.

        Raises `ChatError` if the service refuses the question or the connection is lost.
        """
        begins = {"previous_response_id": self._previous} if self._previous else self._first
        pictures, self._pictures = self._pictures, []
        said = _with_pictures(question, pictures) if pictures else question
        self._send({"type": "response.create", "input": said, **begins, **self._every})
        return self._receive(on_text, stop)

    def _send(self, message: dict[str, Any]) -> None:
        """Send over the open socket, or over a new one if it was lost since the last turn."""
        text = json.dumps(message)
        if self._socket is not None:
            try:
                self._drain(self._socket)
                self._socket.send(text)
                return
            except ConnectionClosed:
                self._socket = None
        self.open()
        assert self._socket is not None
        self._socket.send(text)

    @staticmethod
    def _drain(socket: ClientConnection) -> None:
        """Read what came between the turns: only reading shows that the server has left."""
        while True:
            try:
                socket.recv(timeout=0)
            except TimeoutError:
                return

    def _receive(self, on_text: Callable[[str], None], stop: Interrupts) -> Answer:
        assert self._socket is not None
        answer = Answer()
        while answer.status is None:
            if stop.take():
                if answer.cancelling:
                    self.close()
                    raise ChatError("the answer was dropped")
                answer.cancelling = True
                self._socket.send(json.dumps({"type": "response.cancel"}))
            try:
                event = json.loads(self._socket.recv(timeout=_POLL_SECONDS))
            except TimeoutError:
                continue
            except ConnectionClosed as error:
                self._socket = None
                raise ChatError(f"the connection was lost: {error}") from None
            self._take(event, answer, on_text)
        return answer

    def _take(self, event: dict[str, Any], answer: Answer, on_text: Callable[[str], None]) -> None:
        kind = event["type"]
        if kind == "response.output_text.delta":
            answer.first_text_at = answer.first_text_at or time.monotonic()
            on_text(event["delta"])
        elif kind in _TERMINAL:
            answer.finish(event["response"])
            if kind == "response.failed":
                raise ChatError(event["response"]["error"]["message"])
            self._previous = event["response"]["id"]
        elif kind == "error":
            error = event["error"]
            if error["code"] == "previous_response_not_found":
                self.reset()
                raise ChatError(
                    "the service has forgotten this conversation; ask again for a new one"
                )
            raise ChatError(error["message"])


class Answer:
    """What is known about an answer besides its text."""

    def __init__(self) -> None:
        self.status: str | None = None
        self.cancelling = False
        self.first_text_at: float | None = None
        self._started_at = time.monotonic()
        self.summary = ""
        """One line of figures."""

    def finish(self, response: dict[str, Any]) -> None:
        """Take over the terminal event's response."""
        now = time.monotonic()
        self.status = response["status"]
        usage = response["usage"]
        cached = usage["input_tokens_details"]["cached_tokens"]
        parts = [f"{usage['input_tokens']} prompt tokens, {cached} of them cached"]
        if self.first_text_at is not None:
            parts.append(
                f"first text after {(self.first_text_at - self._started_at) * 1000:.0f} ms"
            )
            if now > self.first_text_at and usage["output_tokens"] > 1:
                rate = (usage["output_tokens"] - 1) / (now - self.first_text_at)
                parts.append(f"{usage['output_tokens']} tokens at {rate:.1f}/s")
        if self.status != "completed":
            details = response.get("incomplete_details") or {}
            parts.append(details.get("reason") or str(self.status))
        self.summary = " · ".join(parts)


class Interrupts:
    """Counts Ctrl-C while an answer comes, instead of ending the program."""

    def __init__(self) -> None:
        self._pending = 0

    def take(self) -> bool:
        """Whether Ctrl-C was pressed since the last call."""
        if not self._pending:
            return False
        self._pending -= 1
        return True

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Collect interrupts within this block."""
        self._pending = 0

        def note(_signal: int, _frame: FrameType | None) -> None:
            self._pending += 1

        before = signal.signal(signal.SIGINT, note)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


def run_chat(
    url: str,
    api_key: str,
    first: Mapping[str, Any],
    every: Mapping[str, Any],
    pictures: Sequence[Path] = (),
) -> int:
    """Chat until the input ends; returns the exit status. Of `first` and `every` see `Chat`; the
    first question comes with `pictures`.

    Raises `ChatError` when there is no service to talk to. On a terminal later errors are shown
    and the conversation goes on; with piped input (one question a line) they end it with status 1.
    """
    terminal = sys.stdin.isatty()
    chat = Chat(url, api_key, first, every)
    for file in pictures:
        chat.show(file)
    chat.open()
    if terminal:
        import readline  # noqa: F401 - gives input() line editing and history

        print(_dim(f"connected to {url}; /help lists the commands"))
    failed = False
    try:
        for question in _questions(terminal):
            if question == "/exit":
                break
            if question == "/help":
                print(HELP)
            elif question == "/reset":
                chat.reset()
                print(_dim("a new conversation"))
            elif question.startswith("/image "):
                _show(chat, Path(question.removeprefix("/image ").strip()))
            elif question.startswith("/"):
                print(f"{question.split()[0]} is no command; /help lists them")
            elif not _turn(chat, question):
                failed = True
                if not terminal:
                    break
    finally:
        chat.close()
    return 1 if failed and not terminal else 0


def _questions(terminal: bool) -> Iterator[str]:
    """Lines that are not blank; at a terminal Ctrl-C empties the line and Ctrl-D ends."""
    while True:
        try:
            line = input("> " if terminal else "").strip()
        except KeyboardInterrupt:
            print()
            if not terminal:
                return
            continue
        except EOFError:
            if terminal:
                print()
            return
        if line:
            yield line


def _show(chat: Chat, file: Path) -> None:
    try:
        chat.show(file)
    except ChatError as error:
        print(f"error: {error}", file=sys.stderr)
    else:
        print(_dim(f"{file} comes with the next question"))


def _turn(chat: Chat, question: str) -> bool:
    """Ask and print; returns whether an answer came."""

    def show(text: str) -> None:
        print(text, end="", flush=True)

    interrupts = Interrupts()
    try:
        with interrupts.caught():
            answer = chat.ask(question, show, interrupts)
    except ChatError as error:
        print(f"\nerror: {error}", file=sys.stderr)
        return False
    print()
    print(_dim(answer.summary), file=sys.stderr)
    return True


def _dim(text: str) -> str:
    return f"\x1b[2m{text}\x1b[0m" if sys.stderr.isatty() else text


_DEFAULT_URL = "http://127.0.0.1:8000"


def chat(
    api_key: Annotated[
        str,
        typer.Option(
            envvar="PARTYWALL_API_KEY", help="API key of the tenant to chat as.", show_default=False
        ),
    ],
    url: Annotated[str, typer.Option(envvar="PARTYWALL_URL", help="The service.")] = _DEFAULT_URL,
    model: Annotated[str | None, typer.Option(help="Model; the service's own by default.")] = None,
    system: Annotated[str | None, typer.Option(help="Text of the system prompt.")] = None,
    prompt: Annotated[
        str | None, typer.Option(help="Name of a registered system prompt of the tenant.")
    ] = None,
    user: Annotated[
        str | None, typer.Option(help="End user, whose conversations share blocks only here.")
    ] = None,
    image: Annotated[
        list[Path] | None,
        typer.Option(help="A picture that the first question is about; may be given again."),
    ] = None,
    max_output_tokens: Annotated[
        int | None, typer.Option(min=1, help="Longest answer, in tokens.")
    ] = None,
    temperature: Annotated[
        float, typer.Option(min=0, max=2, help="Randomness; 0 always takes the likeliest token.")
    ] = 0.6,
) -> None:
    """Chat in the terminal. Piped input is taken as one question a line."""
    if system is not None and prompt is not None:
        raise typer.BadParameter("--system and --prompt exclude each other")
    named = None if prompt is None else {"id": prompt}
    every = {
        "model": model,
        "user": user,
        "max_output_tokens": max_output_tokens,
        "temperature": temperature,
    }
    first = {"instructions": system, "prompt": named}
    raise typer.Exit(run_chat(url, api_key, _given(first), _given(every), image or ()))


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
