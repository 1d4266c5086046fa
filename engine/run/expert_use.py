"""How many experts steps read, and how evenly they are used, by what layers have counted.

A token is computed by few experts, but the tokens of a step together read the weights of many; and
where some experts have far more tokens than others, a router is not at home with what it reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from engine.batch.staging import Download
from engine.model.layers.fused import FusedDecoder
from engine.model.layers.paged_model import PagedModel
from kernels.types import Experts

_WINDOW: Final = 256
"""Tokens an expert, the mean of all; of fewer the busiest one is far off by chance."""

_Counts = npt.NDArray[np.int64]


class ExpertUse:
    """Of a model's layers, since it was made."""

    def __init__(self, layers: Sequence[Experts]) -> None:
        """Over the experts of each layer that has some, at least one."""
        self._uses = [layer.uses for layer in layers]
        self._ends = np.cumsum([len(uses) for uses in self._uses])[:-1]
        self._num_experts = [layer.num_experts for layer in layers]
        self.begin()

    def begin(self) -> None:
        """Leave out what was counted so far: it was for measurements."""
        self._asked = self._ask()
        self._before = self._window = self._answer(self._asked)
        self._imbalance: float | None = None

    def figures(self) -> dict[str, int | float | None]:
        """By the names that `EngineStats` has for them.

        A GPU is not waited for: what it has counted is that of the last time this was asked.
        """
        asked, self._asked = self._asked, self._ask()
        on_device = self._uses[0].is_cuda
        counted = self._answer(asked if on_device else self._asked)
        self._see(counted)
        since = self._split(counted - self._before)
        return {
            "num_experts": max(self._num_experts),
            "expert_rows": sum(int(layer[:-2].sum()) for layer in since),
            "experts_read": sum(int(layer[-2]) for layer in since),
            "expert_passes": sum(int(layer[-1]) for layer in since),
            "expert_imbalance": self._imbalance,
        }

    def _see(self, counted: _Counts) -> None:
        """Compare experts, once they have had enough tokens since that was done last."""
        rows = [layer[:-2] for layer in self._split(counted - self._window)]
        if all(layer.sum() >= _WINDOW * len(layer) for layer in rows):
            self._imbalance = float(np.mean([layer.max() / layer.mean() for layer in rows]))
            self._window = counted

    def _split(self, counted: _Counts) -> list[_Counts]:
        return np.split(counted, self._ends)

    def _ask(self) -> Download:
        return Download.of([torch.cat(self._uses)])

    def _answer(self, asked: Download) -> _Counts:
        (counted,) = asked.wait()
        return counted.numpy()


def expert_use(model: PagedModel) -> ExpertUse | None:
    """That of `model`; `None` where it has no experts, or its own modules compute them."""
    decoder = model.weights.decoder
    layers = decoder.experts if isinstance(decoder, FusedDecoder) else []
    return ExpertUse(layers) if layers else None
