"""Layers with states take the sequences of a step at once, and keep them apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from engine.batch.batch import pack
from engine.model.layers.eager import recurrent
from engine.model.layers.paged_model import PagedModel
from engine.model.load import load_model
from engine.model.self_check import relative_error
from kernels.types import StateRuns
from tests.engine.model.test_families import saved
from tests.engine.model.tiny_families import tiny_config

FAMILIES = ("bamba", "falcon_h1", "falcon_mamba", "granitemoehybrid", "jamba", "kimi_linear")
FAMILIES += ("lfm2", "mamba", "mamba2", "minimax", "nemotron_h", "olmo_hybrid")
FAMILIES += ("qwen3_5_text", "qwen3_next")
STEPS = ((40, 1, 9), (1, 1, 30), (1, 7, 1))
"""Tokens of three sequences."""
CUT = 16
"""Where a state is left behind in the first one's prompt."""


class Sequences:
    """Three of them, over pages of a model."""

    def __init__(self, model: PagedModel) -> None:
        self._model = model
        totals = [sum(counts) for counts in zip(*STEPS, strict=True)]
        self.ids = [[3 + (7 * place + 31 * row) % 90 for place in range(total)]
                    for row, total in enumerate(totals)]  # fmt: skip
        columns, blocks = model.pages.num_columns, -(-max(totals) // model.block_size)
        keys, states = 3 * columns * blocks, 4 * model.pages.state_pages
        model.allocate(keys + states)
        pages = np.arange(keys + states, dtype=np.int32)[::-1].copy()
        self._keys = pages[:keys].reshape(3, columns, blocks)
        self._states = torch.from_numpy(pages[keys:].reshape(4, -1))
        self._starts = [0, 0, 0]

    def step(self, counts: tuple[int, ...]) -> list[Tensor]:
        """Logits of the tokens of each."""
        chunks = list(zip(self.ids, self._starts, counts, self._keys, strict=True))
        batch = pack(chunks, range(sum(counts)), self._model.block_size, self._model.device)
        logits = self._model.forward(replace(batch, states=self._runs(counts)))
        self._starts = [start + count for start, count in zip(self._starts, counts, strict=True)]
        return list(logits.split(counts))

    def _runs(self, counts: tuple[int, ...]) -> StateRuns:
        lengths, sources, targets = [], [], []
        for row, count in enumerate(counts):
            own, nothing = self._states[row], torch.full_like(self._states[row], -1)
            source = own if self._starts[row] else nothing
            if count > CUT and row == 0:
                lengths.append(CUT)
                sources.append(source)
                targets.append(self._states[3])
                source, count = self._states[3], count - CUT
            lengths.append(count)
            sources.append(source)
            targets.append(own)
        starts = torch.tensor([0, *lengths]).cumsum(0).int()
        return StateRuns(starts, torch.stack(sources), torch.stack(targets))


@torch.inference_mode()
def error_of(family: str, folder: Path) -> float:
    """How far logits are from what the model says of each sequence alone."""
    given = saved(tiny_config(family), folder)
    sequences = Sequences(load_model(given))
    parts = [sequences.step(counts) for counts in STEPS]
    own = AutoModelForCausalLM.from_pretrained(
        given.model_path, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    return max(
        relative_error(torch.cat(found), own(torch.tensor([ids]), use_cache=False).logits[0])
        for ids, found in zip(sequences.ids, zip(*parts, strict=True), strict=True)
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_known_modules_take_all_sequences_at_once(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(recurrent, "_alone")
    assert error_of(family, tmp_path) < 1e-5
