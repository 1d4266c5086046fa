"""CUDA graphs of a model's steps, and how large these are."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from engine.config import EngineConfig
from engine.model.layers.fused import FusedDecoder
from engine.model.layers.paged_model import PagedModel
from engine.model.step_size import StepSize
from engine.run.graphs.decode import DecodeGraphs
from engine.run.graphs.padding import Padder, row_buckets
from engine.run.graphs.pieces import PieceGraphs
from engine.run.graphs.recording import Record
from engine.run.memory_profile import CudaMemory, DeviceMemory

if TYPE_CHECKING:
    from engine.assembly.parts import Parts

_GRAPHS_SHARE: Final = 1 / 32
"""Of a GPU's memory: what CUDA graphs of either kind may take of it."""


def step_size(config: EngineConfig) -> StepSize:
    """That of a configuration for which it has been chosen."""
    tokens, sequences = config.step_token_budget, config.max_running_requests
    assert tokens is not None
    assert sequences is not None
    return StepSize(tokens, sequences)


def make_graphs(parts: Parts, record: Record | None = None) -> DecodeGraphs:
    """Graphs for as many rows as may run at once, not recorded yet; of `record`, see them."""
    info = parts.info
    room = info.max_context_tokens, info.num_blocks
    return graphs_of(parts.config, parts.model, *room, _memory(parts.model), record)


def make_pieces(parts: Parts, record: Record | None = None) -> PieceGraphs | None:
    """Graphs for steps with prompts, not recorded yet; `None` for layers that are not fused."""
    null_block = parts.info.num_blocks
    return pieces_of(parts.config, parts.model, null_block, _memory(parts.model), record)


def _memory(model: PagedModel) -> DeviceMemory | None:
    return CudaMemory(model.device) if model.device.type == "cuda" else None


def graphs_of(
    config: EngineConfig,
    model: PagedModel,
    max_context: int,
    null_block: int,
    memory: DeviceMemory | None,
    record: Record | None = None,
) -> DecodeGraphs:
    """Graphs of decode steps; rows that only fill a batch up write to `null_block`."""
    padder = Padder(
        row_buckets(step_size(config).sequences),
        model.block_size,
        null_block,
        max_context,
        has_groups=config.prefix_grouping and not config.batch_invariant,
        has_lengths=model.weights.rotary_switch is not None,
    )
    graphs = partial(DecodeGraphs, model.forward, padder, model.device, record)
    return graphs() if memory is None else graphs(memory.used, int(memory.total * _GRAPHS_SHARE))


def pieces_of(
    config: EngineConfig,
    model: PagedModel,
    null_block: int,
    memory: DeviceMemory | None,
    record: Record | None = None,
) -> PieceGraphs | None:
    """Graphs of steps with prompts, as `make_pieces`."""
    decoder = model.weights.decoder
    if not isinstance(decoder, FusedDecoder):
        return None
    pieces = partial(PieceGraphs, model, decoder, null_block, step_size(config).tokens, record)
    return pieces() if memory is None else pieces(memory.used, int(memory.total * _GRAPHS_SHARE))
