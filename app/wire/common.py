"""What every wire message shares: strict models, sampling fields, declined ones.

Nothing is accepted and ignored in silence. A field that OpenAI's API has and this service does not
is declared as `Declined`, with the values that ask for nothing; any other value is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from itertools import islice
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar

import msgspec
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    StringConstraints,
    Tag,
    ValidationError,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from app.wire.bounded_json import is_too_deep
from app.wire.errors import NOT_SUPPORTED, from_validation, invalid_request, shortened

_MAX_IGNORED: Final = 32
MAX_STOP_STRINGS = 4
MAX_STOP_CHARACTERS = 1024
MAX_METADATA_PAIRS = 16
MAX_ITEMS = 4096
"""Items of a conversation, and parts of an item, at most."""


class Wire(BaseModel):
    """A message on the wire: unknown fields are errors, and types are taken literally."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    wishes: ClassVar[Mapping[str, object]] = {"verbosity": "medium"}
    """Fields that change nothing, whatever they say, and what they say where nothing is wished."""
    own_words: ClassVar[Mapping[str, str]] = {}
    """What other APIs call fields, and what they are called here."""

    @property
    def effort_wish(self) -> EffortWish:
        """The field that says how much to reason, and what it says."""
        return None

    @cached_property
    def ignored_fields(self) -> list[str]:
        """What it says that nothing comes of, at most 32 fields, as a client writes them.

        That is what is unknown, and wishes that no model here can be asked for. It goes through all
        of a message, so that whoever parses a long one looks first, where it holds nobody up.
        """
        return [shortened(path) for path in islice(_ignored(self, ""), _MAX_IGNORED)]


Model = TypeVar("Model", bound=Wire)


def parse(model: type[Model], document: Any, *, ignores_unknown: bool = False) -> Model:
    """Validate a decoded document. Raises `ApiError` naming the first offending field.

    Unknown fields are none where it `ignores_unknown` ones: see `Wire.ignored_fields`.
    """
    if not isinstance(document, dict):
        raise invalid_request("Expected a JSON object.", None, "invalid_type")
    try:
        return model.model_validate(document, extra="allow" if ignores_unknown else "forbid")
    except ValidationError as error:
        raise from_validation(error, model.own_words) from error


def _ignored(message: Wire, prefix: str) -> Iterator[str]:
    yield from (f"{prefix}{name}" for name in message.model_extra or ())
    for name in type(message).model_fields:
        value, path = getattr(message, name), f"{prefix}{name}"
        if name in message.wishes and value not in (None, message.wishes[name]):
            yield path
        elif isinstance(value, Wire):
            yield from _ignored(value, f"{path}.")
        elif isinstance(value, list):
            for index, one in enumerate(value):
                if isinstance(one, Wire):
                    yield from _ignored(one, f"{path}[{index}].")


class Declining:
    """Lets only values through that ask for nothing (`None` always does)."""

    def __init__(self, *neutral: object) -> None:
        self._neutral = (None, *neutral)

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(
        self, _: CoreSchema, __: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"enum": list(self._neutral)}

    def _check(self, value: object) -> object:
        if any(type(value) is type(one) and value == one for one in self._neutral):
            return value
        raise PydanticCustomError("unsupported_value", NOT_SUPPORTED)


Declined = Annotated[Any, Declining()]
"""A known field that this service does not serve."""

DeclinedFlag = Annotated[Any, Declining(False)]
DeclinedList = Annotated[Any, Declining([])]
PromptLogprobsField = Annotated[int, Field(ge=0, le=20)] | None
"""vLLM's: alternatives to each of the prompt's tokens."""
Identifier = Annotated[str, StringConstraints(min_length=1, max_length=256)]
EndUser = Annotated[str, StringConstraints(max_length=256)]
"""Whom a conversation belongs to; an empty one names nobody."""
CacheKey = Annotated[str, StringConstraints(max_length=64)]
Tier = Literal["flex", "default", "priority"]
"""Which of a tenant's requests are served first: none goes before another tenant's."""
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""How much to reason. What a model cannot be asked for changes nothing."""
Verbosity = Literal["low", "medium", "high"] | None
"""No model here can be asked for it: `ignored_fields` names what is not "medium"."""
EffortWish = tuple[str, Effort] | None
"""A field that says how much to reason, and what it says."""
ServiceTier = Literal["auto", "flex", "default", "priority"] | None


class CacheControl(Wire):
    """A client's mark for what is worth caching: all full blocks of a prompt are cached anyway."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


def type_tag(value: Any, default: str | None = None) -> str:
    """The tag of a value by its `type`; tags do not show in error paths."""
    is_object = isinstance(value, dict)
    return f"@{value.get('type', default) if is_object else getattr(value, 'type', default)}"


def by_type(message: str, tag: Callable[[Any], str] = type_tag) -> Discriminator:
    """What tells values by their `tag`, and says `message` of one that has none of those known."""
    return Discriminator(tag, custom_error_type="unsupported_value", custom_error_message=message)


def at_most(count: int, *, least: int | None = None) -> Any:
    """Of a list: how many members it may have. The first bad one is all that is told."""
    return Field(fail_fast=True, min_length=least, max_length=count)


def text_or_list(value: Any) -> str:
    """The tag of a value that may be a string or a list; tags do not show in error paths."""
    return "@text" if isinstance(value, str) else "@list"


Several = TypeVar("Several")
TextOr = Annotated[
    Annotated[str, Tag("@text")] | Annotated[Several, Tag("@list")], Discriminator(text_or_list)
]
"""A string, or a list of what it stands for."""


def _stop_strings(value: str | list[str]) -> str | list[str]:
    strings = [value] if isinstance(value, str) else value
    if not all(strings):
        raise PydanticCustomError("invalid_value", "a stop string cannot be empty")
    if len(strings) > MAX_STOP_STRINGS:
        raise PydanticCustomError("invalid_value", f"at most {MAX_STOP_STRINGS} stop strings")
    if max(map(len, strings), default=0) > MAX_STOP_CHARACTERS:
        message = f"a stop string holds {MAX_STOP_CHARACTERS} characters at most"
        raise PydanticCustomError("invalid_value", message)
    return value


def _metadata(value: dict[str, str]) -> dict[str, str]:
    if len(value) > MAX_METADATA_PAIRS:
        raise PydanticCustomError("invalid_value", f"at most {MAX_METADATA_PAIRS} pairs")
    for key, text in value.items():
        if len(key) > 64 or len(text) > 512:
            message = "keys hold 64 characters, values 512: {key} has more"
            raise PydanticCustomError("invalid_value", message, {"key": repr(key[:64])})
    return value


Metadata = Annotated[dict[str, str], AfterValidator(_metadata)]

TEMPLATE_KWARGS: Final = "chat_template_kwargs"
_MOST_NAMES = 32
_MOST_BYTES = 16_384


def _template_kwargs(value: dict[str, Any]) -> dict[str, Any]:
    if len(value) > _MOST_NAMES:
        raise PydanticCustomError("invalid_value", f"at most {_MOST_NAMES} variables")
    if any(len(name) > 64 or not name.isidentifier() for name in value):
        raise PydanticCustomError("invalid_value", "names are words of 64 characters at most")
    if is_too_deep(value):
        raise PydanticCustomError("invalid_value", "it is nested too deeply")
    if len(msgspec.json.encode(value)) > _MOST_BYTES:
        raise PydanticCustomError("invalid_value", f"at most {_MOST_BYTES} bytes of JSON")
    return value


TemplateKwargs = Annotated[dict[str, Any], AfterValidator(_template_kwargs)] | None
"""Options of the chat template, under the name that vLLM and SGLang have for them: see
`app.request.template_options`.
"""


class SamplingFields(Wire):
    """How to sample and on whose behalf: the same names in both APIs.

    `top_k`, `min_p`, `repetition_penalty`, `seed` (on responses), `stop_token_ids`, `min_tokens`
    and `ignore_eos` are extensions to OpenAI's API, under the names that other open servers use.
    `prompt_cache_key` narrows sharing: conversations share blocks only under the same key.
    """

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: (
        Annotated[
            TextOr[Annotated[list[str], Field(fail_fast=True)]], AfterValidator(_stop_strings)
        ]
        | None
    ) = None
    stop_token_ids: Annotated[list[int], Field(fail_fast=True, max_length=64)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    ignore_eos: bool | None = None
    user: EndUser | None = None
    safety_identifier: EndUser | None = None
    prompt_cache_key: CacheKey | None = None
    service_tier: ServiceTier = None
    parallel_tool_calls: bool | None = None

    @property
    def end_user(self) -> str | None:
        """Who the conversation belongs to; `safety_identifier` supersedes the older `user`."""
        return self.safety_identifier or self.user or None

    @property
    def tier(self) -> Tier:
        """The service tier, which every request has."""
        if self.service_tier is None or self.service_tier == "auto":
            return "default"
        return self.service_tier

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The stop strings as a tuple, whichever form they came in."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
