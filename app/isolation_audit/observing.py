"""What is observed: channels, their features, and the value of each in one probe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

CHANNELS: Final = {
    "ttft": "time to the first token of a prompt",
    "itl": "time between tokens, of an answer alone and of one beside which a prompt is read",
    "usage": "what usage tells beside the lengths of prompt and answer",
    "diagnostics": "what else an answer tells: headers, fields of the server's own, "
    "prompt_cache_diagnostics",
    "errors": "what comes of going on from a stored response",
    "ids": "what comes of asking for a stored response",
    "constrained": "time to the first token of an answer held to a JSON schema",
    "adapters": "time to the first token behind an adapter of the same files as one just used",
    "adapter_use": "time to the first token, of the model and of an adapter that is in use, behind "
    "a request for another adapter",
    "adapter_names": "what comes of asking for an adapter by its name",
}
"""Each with what is looked at."""

_LENGTHS: Final = {"prompt_tokens", "completion_tokens", "total_tokens"}
_IGNORED: Final = {"header.date"}

Value = float | str


class Feature(NamedTuple):
    """One thing that a channel tells."""

    channel: str
    name: str

    @property
    def is_seconds(self) -> bool:
        """Whether its values are times."""
        return self.name.endswith("seconds")

    @property
    def label(self) -> str:
        """What it is called beside values that have their unit."""
        return self.name.removesuffix("seconds").strip() or "time"


Observation = dict[Feature, Value]


class Arm(NamedTuple):
    """A kind of probe: by the neighbour or, as a control, by who has sent something itself."""

    prober: str
    """`neighbour` or `control`."""
    is_sent: bool
    """Whether the probe is for what has just been sent, or for what nobody has sent."""


ARMS: Final = tuple(
    Arm(prober, is_sent) for prober in ("neighbour", "control") for is_sent in (True, False)
)

Samples = Mapping[Arm, list[Observation]]


def told(channel: str, document: Mapping[str, Any]) -> Observation:
    """Every leaf of a document as a feature, named by its path. Nothing comes of nulls."""
    leaves = _leaves(document, "")
    return {Feature(channel, name): value for name, value in leaves if name not in _IGNORED}


def told_by_usage(usage: Mapping[str, Any]) -> Observation:
    """Of the usage of a chat completion, what says more than its lengths."""
    more = {name: value for name, value in usage.items() if name not in _LENGTHS}
    return told("usage", more)


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Value]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _leaves(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, float(value)
    elif value is not None:
        yield path, _number_or(str(value))


def _number_or(text: str) -> Value:
    """Headers write numbers as texts."""
    return float(text) if text.replace(".", "", 1).isdecimal() and text.isascii() else text
