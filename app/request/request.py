"""What any route asks for, in words of no API: one conversation to be answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from app.request.cache_wish import CacheWish
from app.request.constraint import Constraint
from app.request.template_options import TemplateOptions
from app.wire.common import SamplingFields, Verbosity
from app.wire.errors import invalid_request
from app.wire.functions import Function, Message, Tools, num_characters
from app.wire.responses import PromptReference
from engine.api import BeamParams


@dataclass(frozen=True, slots=True)
class SealedSummary:
    """What stands for an earlier part of the conversation, see `app.prompt.sealing`."""

    sealed: str


@dataclass(frozen=True, slots=True)
class Thought:
    """What a model reasoned before it answered or called.

    It may come as `sealed` text, see `app.prompt.sealing`.
    """

    text: str = ""
    sealed: str | None = None


Item = Message | SealedSummary | Thought
"""Something that was said, called or answered; developers speak as the system."""


@dataclass(frozen=True, slots=True)
class Earlier:
    """What was said in a conversation before, and the end user whom it belongs to.

    `kept` are its items by their ids, as JSON.
    """

    items: Sequence[Item] = ()
    end_user: str | None = None
    kept: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ItemName:
    """What stands for an item of an earlier response, see `app.responses.items`."""

    id: str


@dataclass(frozen=True, slots=True)
class FieldNames:
    """What the request's API calls its fields, for errors to name.

    `parameters` are those of a function, `definition` is that of a custom tool's grammar, and
    `sealed` what an item holds for this service alone, by their places.
    """

    items: str
    max_tokens: str
    parameters: str = "tools[{}].parameters"
    definition: str = "tools[{}].format.definition"
    sealed: str = "input[{}].encrypted_content"

    def held(self, function: Function) -> str:
        """What says what calls of a function have to be."""
        return self.parameters if function.grammar is None else self.definition


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """`num_sequences` sampled lines, of which the best `num_choices` are the answer, or a search.

    `field` is the one that asks for so many.
    """

    num_choices: int = 1
    num_sequences: int = 1
    beam: BeamParams | None = None
    field: str = "n"

    @property
    def width(self) -> int:
        """Lines that are computed side by side, each as long as an answer may be."""
        return self.num_sequences if self.beam is None else self.beam.num_beams

    @property
    def ranks(self) -> bool:
        """Whether more lines are sampled than the answer has."""
        return self.num_sequences > self.num_choices

    def check(self, most: int) -> None:
        """Raises `ApiError` where an engine that computes `most` lines at once has too few."""
        if self.width > most:
            message = f"'{self.field}' can be {most} at most: so many run at once."
            raise invalid_request(message, self.field)


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """One conversation to be answered.

    It begins with `items`, under the system text that `prompt` names or `instructions` are, or goes
    on with them behind `previous_response_id`, or behind what was said `earlier` in the
    conversation `conversation_id`. `sampling` is what all APIs share. An answer that
    names no `max_tokens` has `default_max_tokens`, or what the service and the context allow.
    `constraint` is what it is held to. `logprobs` is the number of alternatives beside each token,
    `None` for no log-probabilities. Of a conversation that is too long turns may be left out where
    it `truncates`.

    A prompt that is no conversation is `raw`, a text or its token ids. `prompt_logprobs` is for the
    prompt's tokens, behind the first, what `logprobs` is for the answer's. The chat template is
    told of `template_options`, and a text that is reasoned has `reasoning_tokens` at most. With 0
    `max_tokens` the prompt is computed, and nothing else.
    `cache` is what is asked of the prompt cache. Of a `verbosity` no model here can be told.
    """

    id: str
    items: Sequence[Item | ItemName]
    names: FieldNames
    sampling: SamplingFields
    model: str | None = None
    instructions: str | None = None
    prompt: PromptReference | None = None
    previous_response_id: str | None = None
    conversation_id: str | None = None
    earlier: Earlier = field(default_factory=Earlier)
    max_tokens: int | None = None
    default_max_tokens: int | None = None
    logprobs: int | None = None
    truncates: bool = False
    raw: str | Sequence[int] | None = None
    prompt_logprobs: int | None = None
    constraint: Constraint | None = None
    candidates: Candidates = field(default_factory=Candidates)
    tools: Tools = field(default_factory=Tools)
    template_options: TemplateOptions = field(default_factory=TemplateOptions)
    cache: CacheWish = field(default_factory=CacheWish)
    reasoning_tokens: int | None = None
    verbosity: Verbosity = None

    @property
    def longest_field(self) -> str:
        """The field that most of the new text is in: the one to shorten where that is too long."""
        if self.instructions is None or self.previous_response_id is not None:
            return self.names.items
        said = sum(map(item_characters, self.items))
        return "instructions" if len(self.instructions) > said else self.names.items


def retold(request: GenerationRequest, earlier: Earlier, system: str | None) -> GenerationRequest:
    """A request that says all anew that was said before it, under the `system` text that began it,
    unless it names another.
    """
    if request.prompt is None and request.instructions is None:
        first = earlier.items[0] if earlier.items else None
        is_said = isinstance(first, dict) and first["content"] == system
        request = replace(request, instructions=None if is_said else system)
    return replace(request, earlier=earlier)


def item_characters(item: Item | ItemName) -> int:
    """Characters that a request has for an item."""
    if isinstance(item, ItemName):
        return 0
    if isinstance(item, Thought):
        return len(item.text) + len(item.sealed or "")
    if isinstance(item, SealedSummary):
        return len(item.sealed)
    return num_characters(item) + sum(len(one.url) for one in item.get("pictures", ()))
