"""The rows of a step that stand for pictures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.api import PictureUse
from engine.sequences.plan import ScheduledChunk
from kernels.types import Mutual

Rows = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Mutuality:
    """How tokens of a picture that stand side by side see each other."""

    num_tokens: int
    """As many there are of a picture, as models come; they are computed in one step."""
    in_windows: bool = False
    """Whether they do in layers with a window only."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a model's tower has made of a picture."""

    values: Tensor  # [num_picture_tokens, hidden_size]
    """What takes the place of its tokens' embeddings."""
    deep: Tensor | None = None  # [num_layers, num_picture_tokens, hidden_size]
    """What is added behind the first layers."""
    turned: Tensor | None = None  # [3, num_tokens] int64
    """By which places in time, height and width all of its tokens are turned, from its own first
    one on; `None`: as any others."""
    span: int = 0
    """How many places these take of the prompt's; of no account where they are as any others."""

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """All of them, those of the widest type first."""
        return self.turned, self.values, self.deep

    @property
    def num_bytes(self) -> int:
        """Of memory."""
        return sum(tensor.nbytes for tensor in self.tensors if tensor is not None)


@dataclass(frozen=True, slots=True)
class SeenRows:
    """Rows of a batch that are computed from what was seen."""

    rows: Tensor  # [num_rows] int64
    values: Tensor  # [num_rows, hidden_size]
    deep: Tensor | None = None  # [num_layers, num_rows, hidden_size]
    turned: Tensor | None = None  # [3, num_turned] int64
    """Of the tokens whose positions are behind all others, in their order: where they are turned
    to."""
    mutual: tuple[Mutual, ...] = ()
    """Rows side by side of one picture, if the model lets these see each other."""

    def on(self, device: torch.device) -> SeenRows:
        """The same there."""
        if self.rows.device == device:
            return self
        tensors = {name: getattr(self, name) for name in ("rows", "values", "deep", "turned")}
        found: dict[str, Any] = {
            name: one if one is None else one.to(device) for name, one in tensors.items()
        }
        return replace(self, **found)


@dataclass(slots=True)
class _Parts:
    """What was found of a step so far."""

    rows: list[Rows] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    deep: list[Tensor] = field(default_factory=list)
    turned: list[Tensor] = field(default_factory=list)
    num_turned: int = 0
    mutual: list[Mutual] = field(default_factory=list)

    def joined(self) -> SeenRows | None:
        if not self.rows and not self.turned:
            return None
        return SeenRows(
            torch.from_numpy(np.concatenate(self.rows)),
            torch.cat(self.values),
            torch.cat(self.deep, dim=1) if self.deep else None,
            torch.cat(self.turned, dim=1) if self.turned else None,
            tuple(self.mutual),
        )


class PictureRows:
    """Finds the rows of pictures among those of a step, and where the rows behind them are."""

    def __init__(
        self,
        token_id: int,
        seen: Mapping[bytes, Seen],
        num_places: int,
        mutual: Mutuality | None = None,
    ) -> None:
        """`token_id` stands for a picture, `seen` is what is known of those in requests, and
        `num_places` is how many places there are: what is turned otherwise comes behind these.
        Tokens of a picture that stand side by side see each other as `mutual` says.
        """
        self.mutual = mutual
        self._token_id = token_id
        self._seen = seen
        self._num_places = num_places

    def find(
        self, places: Sequence[tuple[ScheduledChunk, int]], positions: Tensor
    ) -> SeenRows | None:
        """Those of chunks, given their first rows; `positions`, of all rows, are put right."""
        parts = _Parts()
        for chunk, first in places:
            if chunk.sequence.request.pictures:
                self._look_at(chunk, first, positions[first : first + chunk.num_rows], parts)
        return parts.joined()

    def _look_at(self, chunk: ScheduledChunk, first: int, positions: Tensor, parts: _Parts) -> None:
        """`positions` are those of the chunk's rows, as if nothing were turned otherwise."""
        prompt = chunk.sequence.request.prompt
        end = chunk.start + chunk.num_rows
        spared = 0
        for use, seen in self._up_to(chunk.sequence.request.pictures, end):
            own = range(max(use.start, chunk.start), min(use.end, end))
            if seen.turned is not None and own:
                turned = seen.turned[:, own.start - use.start : own.stop - use.start]
                parts.turned.append(turned + (use.start - spared))
                number = self._num_places + parts.num_turned
                parts.num_turned += len(own)
                positions[own.start - chunk.start : own.stop - chunk.start] = torch.arange(
                    number, number + len(own)
                )
            if seen.turned is not None:
                positions[max(0, use.end - chunk.start) :] -= use.count - seen.span
                spared += use.count - seen.span
            if own:
                before = prompt[use.start : own.start].count(self._token_id)
                (rows,) = np.nonzero(np.array(prompt[own.start : own.stop]) == self._token_id)
                taken = slice(before, before + len(rows))
                parts.rows.append(rows + (first + own.start - chunk.start))
                if self.mutual is not None:
                    parts.mutual += _mutual(rows, own.start, first + own.start - chunk.start)
                parts.values.append(seen.values[taken])
                if seen.deep is not None:
                    parts.deep.append(seen.deep[:, taken])

    def _up_to(self, pictures: Sequence[PictureUse], end: int) -> Iterator[tuple[PictureUse, Seen]]:
        for use in pictures:
            if use.start >= end:
                return
            yield use, self._seen[use.name]


def _mutual(rows: Rows, position: int, first: int) -> Iterator[Mutual]:
    """Runs of `rows`, whose numbers begin at `position` in a sequence, and at `first` in a step. No
    step ends within a run.
    """
    for run in np.split(rows, np.nonzero(np.diff(rows) > 1)[0] + 1) if len(rows) else ():
        start, count = int(run[0]), len(run)
        yield Mutual(0, first + start, count, position + start, position + start + count)
