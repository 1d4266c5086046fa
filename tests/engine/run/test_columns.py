"""Layers of several kinds, each with pages of its own: whatever computes a step finds them."""

from __future__ import annotations

import random
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.assembly.parts import Parts, load_parts, make_graphs, make_pieces
from engine.batch.batch import Batch, pack, token_by_token
from engine.config import EngineConfig
from engine.model.calibration import calibrate_rows, calibrate_steps
from engine.model.layers.paged_model import PagedModel
from engine.model.load import load_model
from engine.model.self_check import relative_error
from engine.model.step_size import StepSize
from engine.run.graphs import pieces as graph_pieces
from engine.run.memory_profile import compute_largest_step
from kernels.kv_format import SCALE_BYTES
from tests.engine.model.test_model import make_config
from tests.engine.run.test_graphs import BLOCK, CPU, Again, poisoned
from tests.engine.simulated_model import random_prompt

LAYERS = ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"]


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    """A page for each of two kinds' layers would be half empty: so one has several."""
    folder = tmp_path_factory.mktemp("columns")
    torch.manual_seed(1)
    config = make_config("gemma3_text")
    config.num_hidden_layers, config.layer_types = len(LAYERS), LAYERS
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    given = EngineConfig(
        model_path=str(folder),
        device="cpu",
        dtype="float32",
        block_size=BLOCK,
        step_token_budget=48,
        max_running_requests=8,
        threads=1,
        kv_memory_bytes=2**20,
    )
    model, together = load_model(given, by_kinds=True), load_parts(given)
    assert [kind.pages for kind in model.kinds] == [1, 3]
    num_pages = 240
    model.allocate(num_pages + 1)
    info = msgspec.structs.replace(together.info, num_pages=num_pages, kinds=model.kinds)
    return replace(together, model=model, info=info)


def batch_of(rng: random.Random, lengths: list[tuple[int, int]], num_columns: int = 4) -> Batch:
    """Of sequences of so many tokens in front of so many that are computed."""
    pages = rng.sample(range(240), 240)
    rows = []
    for start, count in lengths:
        needed = -(-(start + count) // BLOCK)
        own = np.array([pages.pop() for _ in range(num_columns * needed)], np.int32)
        tokens = random_prompt(rng, start + count)
        rows.append((tokens, start, count, own.reshape(num_columns, needed)))
    ends = np.cumsum([count for _, count in lengths]) - 1
    return pack(rows, ends.tolist(), BLOCK, CPU)


def test_each_columns_tables_and_slots_lie_in_one_piece_and_name_its_own_pages() -> None:
    batch = batch_of(random.Random(1), [(0, 20), (30, 1), (7, 9)])
    columns = batch.columns
    assert len(columns) == 4
    for column in columns:
        assert column.slots.is_contiguous()
        assert column.block_tables.is_contiguous()
        sequences = torch.arange(3).repeat_interleave(column.query_starts.diff())
        pages = column.block_tables[sequences, batch.positions // BLOCK]
        assert torch.equal(column.slots, pages * BLOCK + batch.positions % BLOCK)
        assert column.context_lens is batch.attention.context_lens
    named = torch.cat([column.slots for column in columns])
    assert len(named.unique()) == len(named)


@torch.inference_mode()
def test_token_by_token_each_token_has_the_pages_of_its_sequence(parts: Parts) -> None:
    batch = batch_of(random.Random(2), [(0, 20), (0, 33)])
    expected = parts.model.forward(batch)
    assert relative_error(parts.model.forward(token_by_token(batch)), expected) < 1e-5


@torch.inference_mode()
def test_layers_in_one_call_and_one_by_one_give_the_same(parts: Parts) -> None:
    model, rng = parts.model, random.Random(3)
    decoder = model.weights.decoder
    for lengths in ([(0, 40)], [(0, 33), (0, 1)]):
        batch = batch_of(rng, lengths)
        expected = model.forward(batch)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(decoder, "_stack", None)
            assert relative_error(model.forward(batch), expected) < 1e-5


@torch.inference_mode()
def test_what_is_recorded_writes_to_the_null_page_alone(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_pieces, "TOKEN_BUCKETS", (16, 48))
    model, rng = parts.model, random.Random(4)
    start = torch.randn(model.memory.shape, generator=torch.Generator().manual_seed(1))
    graphs, pieces = poisoned(make_graphs(parts, Again)), make_pieces(parts, Again)
    assert pieces is not None
    graphs.record()
    pieces.record()
    for lengths in ([(20, 1)], [(50, 1), (3, 1), (0, 1)], [(20, 9), (30, 1)], [(5, 31)]):
        batch = batch_of(rng, lengths)
        model.memory.copy_(start)
        expected = model.forward(batch)
        memory = model.memory.clone()
        model.memory.copy_(start)
        if max(count for _, count in lengths) == 1:
            replayed = graphs.run(batch, lambda _: None)
        else:
            replayed = pieces.run(batch, lambda _: None)
        assert replayed is not None
        logits = replayed[1][: len(lengths)]
        torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(model.memory[:-1], memory[:-1], rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_codes_of_every_kind_lie_in_pages_of_their_own(parts: Parts) -> None:
    layout = parts.model.layout
    coded, exact = (PagedModel(parts.model.weights, BLOCK, kind) for kind in ("int8", "auto"))
    batch = batch_of(random.Random(5), [(0, 40), (0, 33)])
    logits = []
    for model in (coded, exact):
        model.allocate(240)
        logits.append(model.forward(batch))
    assert 0 < relative_error(*logits) < 0.05
    head_dim = layout.calls[0].head_dim
    assert coded.page_bytes * head_dim * 4 == exact.page_bytes * (head_dim + SCALE_BYTES)


def test_the_host_tier_is_cut_into_pages_as_the_memory_is(parts: Parts) -> None:
    block_bytes = parts.model.block_bytes
    config = msgspec.structs.replace(parts.config, host_memory_bytes=5 * block_bytes)
    loaded = load_parts(config)
    assert [kind.pages for kind in loaded.info.kinds] == [1, 3]
    assert loaded.info.num_host_blocks == 5
    assert loaded.model.host_memory.shape == (20, loaded.model.pages.page_size)
    page_seconds = loaded.costs.swap_in_seconds(20) - loaded.costs.swap_in_seconds(16)
    assert page_seconds == pytest.approx(4 * loaded.costs.swap_in.per_page)


def test_what_is_measured_at_start_can_be(parts: Parts) -> None:
    own = load_model(msgspec.structs.replace(parts.config), by_kinds=True)
    assert calibrate_steps(own, 64) >= 1
    assert len(calibrate_rows(own, 4, 32, None).points) > 1
    own.allocate(1)
    compute_largest_step(own, StepSize(40, 4), 30)
