"""What the samples of all probes say, channel by channel, and of the server as a whole."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from app.isolation_audit.observing import ARMS, Arm, Feature, Samples, Value
from app.isolation_audit.statistics import holm, same_distribution, same_frequencies

Verdict = Literal["leak", "clean", "cannot tell", "silent"]

CONTROL_ALPHA: Final = 0.01
"""Below it a control has seen what a tenant has sent itself."""
_ABSENT: Final = -1.0
"""For a number that an observation lacks; none is negative."""

Values = Mapping[Arm, Sequence[Value]]


@dataclass(frozen=True)
class Comparison:
    """Probes for what was sent beside probes for what nobody has sent, by the same prober."""

    feature: Feature
    """That which differs most."""
    p: float
    """Of the whole channel: the feature's p-value times the number of features."""
    corrected_p: float
    """The same, corrected by Holm's method for all channels being looked at."""
    sent: Sequence[Value]
    fresh: Sequence[Value]


@dataclass(frozen=True)
class Finding:
    """What a channel says. It is silent where it tells nothing, or always the same."""

    channel: str
    verdict: Verdict
    neighbour: Comparison | None = None
    control: Comparison | None = None
    """The same within one tenant. Only a channel that shows it there could be found to leak."""


def findings(samples: Sequence[Samples], channels: Collection[str], alpha: float) -> list[Finding]:
    """A finding for each channel. A leak is what has a corrected p-value of at most `alpha`."""
    features = {name: values for one in samples for name, values in _features(one).items()}
    by_channel = {
        channel: {name: values for name, values in features.items() if name.channel == channel}
        for channel in channels
    }
    telling = {channel: found for channel, found in by_channel.items() if found}
    neighbour = _compared(telling, "neighbour")
    control = _compared(telling, "control")
    return [
        Finding(channel, _verdict(one, control[channel], alpha), one, control[channel])
        if (one := neighbour.get(channel))
        else Finding(channel, "silent")
        for channel in channels
    ]


def overall(found: Collection[Finding]) -> Verdict:
    """A leak in any channel is one; otherwise each channel that tells anything has to be clean."""
    verdicts = {finding.verdict for finding in found}
    if "leak" in verdicts:
        return "leak"
    return "clean" if "clean" in verdicts and "cannot tell" not in verdicts else "cannot tell"


def _verdict(neighbour: Comparison, control: Comparison, alpha: float) -> Verdict:
    if neighbour.corrected_p <= alpha:
        return "leak"
    return "clean" if control.corrected_p < CONTROL_ALPHA else "cannot tell"


def _features(samples: Samples) -> dict[Feature, Values]:
    """The values of all features that can tell anything, which the arms together decide."""
    names = {name for observed in samples.values() for one in observed for name in one}
    found: dict[Feature, Values] = {}
    for name in sorted(names):
        values: dict[Arm, list[Value]] = {
            arm: [one.get(name, _ABSENT) for one in samples[arm]] for arm in ARMS
        }
        pooled = [value for arm in ARMS for value in values[arm]]
        if any(isinstance(value, str) for value in pooled):
            values = {arm: [str(value) for value in values[arm]] for arm in ARMS}
            if len(set(pooled)) == len(pooled):
                continue  # an id, as new as each request is
        if len(set(pooled)) > 1:
            found[name] = values
    return found


def _compared(
    telling: Mapping[str, Mapping[Feature, Values]], prober: str
) -> dict[str, Comparison]:
    """A comparison for each channel."""
    sent, fresh = Arm(prober, True), Arm(prober, False)
    likeliest: dict[str, tuple[float, Feature]] = {}
    for channel, features in telling.items():
        p, name = min((_p(values[sent], values[fresh]), name) for name, values in features.items())
        likeliest[channel] = min(1.0, p * len(features)), name  # Bonferroni
    corrected = holm({channel: p for channel, (p, _) in likeliest.items()})
    return {
        channel: Comparison(
            name, p, corrected[channel], telling[channel][name][sent], telling[channel][name][fresh]
        )
        for channel, (p, name) in likeliest.items()
    }


def _p(sent: Sequence[Value], fresh: Sequence[Value]) -> float:
    """By the test for such values: Kolmogorov-Smirnov of numbers, chi-square of texts."""
    numbers = [[value for value in side if not isinstance(value, str)] for side in (sent, fresh)]
    if numbers[0] and numbers[1]:
        return same_distribution(*numbers)
    return same_frequencies([str(value) for value in sent], [str(value) for value in fresh])
