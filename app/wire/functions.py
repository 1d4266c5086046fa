"""The functions that a model may call, its calls and their results, in words of no API."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Final, Literal, NotRequired, TypedDict

import msgspec

from app.wire.errors import invalid_request
from engine.api import Grammar

_DIGEST_BYTES = 16
_INPUT = "input"
TEXT_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {_INPUT: {"type": "string"}},
    "required": [_INPUT],
    "additionalProperties": False,
}
"""What a model that calls functions is told of one that takes a text."""
_ENDS = (
    "A call of it ends the answer: behind the name the text is written as it is, without quotes or "
    "escapes."
)
_WORDS = {
    "lark": "What it takes is a text that this grammar, in Lark, derives.",
    "regex": "What it takes is a text that this regular expression matches as a whole.",
}
PLACE: Final = "\ufdd1"
"""What stands for a picture in a message's content: a noncharacter, which no text is meant to hold
(Unicode, section 23.7), and which `plain` takes out of texts."""
REPLACEMENT: Final = "\ufffd"
Detail = Literal["auto", "low", "high"]


def plain(text: str) -> str:
    """A text that stands for no picture, as long as it was."""
    return text.replace(PLACE, REPLACEMENT)


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A picture as somebody has sent it: a `data:` URL or one of the web, or the id of a file that
    was uploaded.

    `param` is the field that it came in. What was kept before is there under its `origin`, the id
    of a response or of a conversation. Once it was looked at, it has the `file` that was found (but
    an uploaded one, which can be read again), the `token_ids` in its place, and the `digest` of
    what the model is given of it.
    """

    url: str = ""
    file_id: str = ""
    detail: Detail = "auto"
    param: str = ""
    origin: str = ""
    file: bytes = b""
    token_ids: tuple[int, ...] = ()
    digest: bytes = b""

    @property
    def source(self) -> bytes:
        """What it is known by where it is kept: a digest of its URL, or of its file's id."""
        sent = self.file_id or self.url
        return blake2b(sent.encode(errors="replace"), digest_size=_DIGEST_BYTES).digest()


@dataclass(frozen=True)
class Function:
    """A function that a client describes; `parameters` is the JSON schema of its arguments.

    With `strict` calls are held to it. `size` and `digest` are those of its description, see
    `measured`. One that `takes_text` is a custom tool: a model is told of a function whose only
    argument is a text, which may have a `grammar`.
    """

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    size: int = 0
    digest: bytes = b""
    strict: bool = False
    takes_text: bool = False
    grammar: Grammar | None = None

    @property
    def measured(self) -> Function:
        """It with its size and digest: what takes a while where the schema is long."""
        data = msgspec.json.encode(self.described, order="sorted")
        digest = blake2b(data, digest_size=_DIGEST_BYTES).digest()
        return replace(self, size=len(data), digest=digest)

    @property
    def described(self) -> dict[str, Any]:
        """It as chat templates take it."""
        description = self.description or ""
        if self.grammar is not None:
            words = f"{_WORDS[self.grammar.kind]} {_ENDS}\n{self.grammar.source}"
            description = f"{description}\n\n{words}" if description else words
        function: dict[str, Any] = {"name": self.name, "description": description}
        function["parameters"] = self.parameters or {"type": "object", "properties": {}}
        return {"type": "function", "function": function}


@dataclass(frozen=True)
class FunctionCall:
    """A call that a model has made: `arguments` is JSON as it wrote it."""

    id: str
    name: str
    arguments: str

    @classmethod
    def of_text(cls, call_id: str, name: str, text: str) -> FunctionCall:
        """A call of what takes a text."""
        return cls(call_id, name, msgspec.json.encode({_INPUT: text}).decode())


@dataclass(frozen=True)
class Tools:
    """What a request says of functions: all there are, and the names of those that may be called.

    Without any name the answer is text. Several calls in one answer have to be `parallel`. Where
    they are `required`, the answer is one call or more.
    """

    functions: Sequence[Function] = ()
    names: Sequence[str] = ()
    parallel: bool = True
    required: bool = False

    @property
    def holding_field(self) -> str | None:
        """The field that asks for answers that are held to a grammar, if one does."""
        if self.required:
            return "tool_choice"
        for index, one in enumerate(self.functions):
            if one.strict and one.name in self.names:
                return f"tools[{index}]"
        return None

    @property
    def texts(self) -> Collection[str]:
        """The names of those that may be called and take a text."""
        return {one.name for one in self.functions if one.takes_text and one.name in self.names}

    @property
    def raws(self) -> Collection[str]:
        """The same of those whose text has a grammar: it is written as it is, see `Shape`."""
        texts = self.texts
        return {one.name for one in self.functions if one.grammar and one.name in texts}

    @property
    def told(self) -> Sequence[Function]:
        """What the model is told of: nothing, where it may call nothing."""
        return self.functions if self.names else ()

    @property
    def schemas(self) -> dict[str, dict[str, Any]]:
        """The functions that may be called, by name, with their parameters."""
        return {
            one.name: one.parameters or {} for one in self.functions if one.name in set(self.names)
        }

    @property
    def digest(self) -> bytes:
        """What tells one set of described functions from another; empty for none."""
        if not self.told:
            return b""
        data = b"".join(function.digest for function in self.told)
        return blake2b(data, digest_size=_DIGEST_BYTES).digest()

    @property
    def num_characters(self) -> int:
        """How long their descriptions are."""
        return sum(function.size for function in self.told)


class Message(TypedDict):
    """One message of a conversation; developer messages are system messages to a template.

    An assistant's may have calls, and reasoning before; one of role "tool" is the result of the
    call `call_id`. Few templates write a speaker's `name`. So many characters of its content lie
    before each of its `breakpoints`. A `PLACE` in its content stands for each of its `pictures`.
    """

    role: str
    content: str
    name: NotRequired[str]
    reasoning: NotRequired[str]
    calls: NotRequired[list[FunctionCall]]
    call_id: NotRequired[str]
    breakpoints: NotRequired[list[int]]
    pictures: NotRequired[list[Picture]]


def pictures_in(messages: Iterable[Message]) -> list[Picture]:
    """The pictures of messages, in order."""
    return [picture for one in messages for picture in one.get("pictures", ())]


def check_results(
    messages: Iterable[Message], waiting: Collection[str], param: str
) -> Collection[str]:
    """The ids of calls that have no result behind `messages`; before, there are some `waiting`.

    Raises `ApiError` naming `param` for a result of no such call. A result may be there once.
    """
    waiting = set(waiting)
    for message in messages:
        waiting.update(call.id for call in message.get("calls", ()))
        if "call_id" not in message:
            continue
        call_id = message["call_id"]
        if call_id not in waiting:
            raise invalid_request(f"There is no call '{call_id}' that has no result yet.", param)
        waiting.remove(call_id)
    return waiting


def num_characters(message: Message) -> int:
    """How long a message is, with the calls in it."""
    calls = message.get("calls", ())
    said = len(message["content"]) + len(message.get("reasoning", ""))
    return said + sum(len(one.name) + len(one.arguments) for one in calls)
