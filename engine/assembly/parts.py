"""From an `EngineConfig` to a loaded model with its memory, what was measured of it, and graphs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from transformers.utils import logging as transformers_logging

from engine.api import EngineError, EngineInfo, block_pages, next_pages
from engine.config import EngineConfig
from engine.draft_model.loading import load_draft
from engine.grammar.vocabulary import Vocabulary, load_vocabulary
from engine.model.calibration import calibrate, calibrate_steps
from engine.model.errors import memory_for
from engine.model.fingerprint import model_fingerprint
from engine.model.kernel_paths import Choice, choose_kernel_paths, measured_step_tokens, rounding
from engine.model.kv_memory import Layout, automatic_kv_bytes, gpu_kv_bytes
from engine.model.layers.fused import FusedDecoder
from engine.model.layers.linear_places import shapes
from engine.model.layers.paged_model import PagedModel
from engine.model.load import load_model
from engine.model.parallel import followers_of
from engine.model.step_size import StepSize, with_step_size
from engine.run.graphs.decode import DecodeGraphs
from engine.run.graphs.padding import Padder, row_buckets
from engine.run.graphs.pieces import PieceGraphs
from engine.run.graphs.recording import CudaMemory, CudaRecorder, DeviceMemory, Graphs, Record
from engine.run.memory_profile import profile
from engine.schedule.swap_or_recompute import FREE_COPIES, CostModel
from engine.system.threads import threads_of_rank
from kernels import backends

_log = logging.getLogger(__name__)
_UNNAMED_CONTEXT: Final = 32_768
"""Tokens, where a model names no limit: where nothing but states is kept, no memory sets one."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What an engine is built from."""

    config: EngineConfig
    """With a token budget and a number of sequences."""
    info: EngineInfo
    model: PagedModel
    """With its memory."""
    costs: CostModel
    draft: PagedModel | None = None
    """What guesses, with memory of its own for as many blocks."""
    vocabulary: Vocabulary | None = None
    """What grammars are compiled for."""


def load_parts(config: EngineConfig, tell: Callable[[str], None] = lambda _: None) -> Parts:
    """Load the model, allocate its KV memory and, if blocks may be swapped, measure it.

    For `tell` and errors see `engine.assembly.assemble.load_core`.
    """
    transformers_logging.disable_progress_bar()
    # It tells whoever compares with its own modules to install kernels that do not serve here.
    logging.getLogger("transformers.integrations.hub_kernels").setLevel(logging.ERROR)
    threads = threads_of_rank(config.threads, config.tensor_parallel)
    config = msgspec.structs.replace(config, threads=threads)
    choice = choose_kernel_paths(config)
    remedy = "choose a smaller model, quantize to int8 or int4, or have more memory"
    with memory_for("the weights", remedy):
        with followers_of(config, choice, by_kinds=True) as followers:
            model = load_model(config, followers, by_kinds=True)
        tell("weights")
        draft = load_draft(config, model)
    if backends.default(model.device) == "reference":
        _log.warning(
            "kernels/native is not built: attention and products run in plain torch, right and "
            "several times slower; install a C compiler, then the package again"
        )
    fingerprint = model_fingerprint(config, model.dtype, _rounding(model, choice))
    config = _with_step_size(config, model, fingerprint)
    host_block_bytes = model.block_bytes
    block_bytes = host_block_bytes + (0 if draft is None else draft.block_bytes)
    # One page more, for rows that only fill a batch up, is nobody's.
    num_blocks = _kv_memory_bytes(config, model, draft, block_bytes) // block_bytes
    num_host_blocks = config.host_memory_bytes // host_block_bytes
    _require_room("kv_memory", num_blocks, block_bytes, model)
    if config.host_memory_bytes:
        _require_room("host_memory", num_host_blocks, host_block_bytes, model)
    with memory_for(f"{num_blocks * block_bytes >> 20} MiB of KV cache", "lower kv_memory"):
        model.allocate(num_blocks * block_pages(model.kinds) + 1)
        if draft is not None:
            draft.allocate(num_blocks + 1)
    with memory_for(f"{config.host_memory_bytes >> 20} MiB behind it", "lower host_memory"):
        model.allocate_host(num_host_blocks * block_pages(model.kinds))
    info = _info(config, model, fingerprint, num_blocks, block_bytes)
    size, ends = info.vocab_size, info.eos_token_ids
    vocabulary = load_vocabulary(Path(config.model_path), size, ends)
    info = msgspec.structs.replace(info, has_grammars=vocabulary is not None)
    costs = FREE_COPIES
    if num_host_blocks:
        costs = calibrate(model, step_size(config).tokens, info.max_context_tokens)
    return Parts(config, info, model, costs, draft, vocabulary)


def _require_room(setting: str, num_blocks: int, block_bytes: int, model: PagedModel) -> None:
    """Raises `EngineError` where so many blocks hold none of each kind: a state may take more pages
    than what is beside it.
    """
    least = -(-next_pages(model.kinds) // block_pages(model.kinds))
    if num_blocks < least:
        state = " with its state" if model.pages.state_pages else ""
        raise EngineError(f"{setting}: a single block{state} takes {least * block_bytes} bytes")


def _rounding(model: PagedModel, choice: Choice) -> str:
    """What KV hangs on to the last bit, where that matters; on a GPU no path of the CPU's."""
    if not model.batch_invariant:
        return ""
    return rounding(choice) if model.device.type == "cpu" else "batch-invariant"


def _with_step_size(config: EngineConfig, model: PagedModel, fingerprint: bytes) -> EngineConfig:
    """What is not configured is chosen: for a GPU by its size, for a CPU by its speed."""
    tower = model.weights.tower
    together = 0 if tower is None or tower.mutual is None else tower.mutual.num_tokens
    if config.step_token_budget is not None or model.device.type != "cpu":
        return with_step_size(config, model.device, together=together)
    measure = partial(calibrate_steps, model, context_limit(config, model))
    tokens = measured_step_tokens(config, fingerprint.hex(), measure)
    return with_step_size(config, model.device, tokens, together)


def _kv_memory_bytes(
    config: EngineConfig, model: PagedModel, draft: PagedModel | None, block_bytes: int
) -> int:
    if config.kv_memory_bytes is not None:
        return config.kv_memory_bytes
    if model.device.type != "cuda":
        layout = _kv_layout(config, model, block_bytes)
        return automatic_kv_bytes(layout, context_limit(config, model))
    memory = CudaMemory(model.device)
    return profiled_kv_bytes(config, model, block_bytes, memory, draft=draft)


def profiled_kv_bytes(
    config: EngineConfig,
    model: PagedModel,
    block_bytes: int,
    memory: DeviceMemory,
    record: Record | None = None,
    draft: PagedModel | None = None,
) -> int:
    """What a GPU of that `memory` has for the KV cache; `record` is a `CudaRecorder`, or so.

    Steps of a `draft` model come between those of the model, and its graphs beside the others.
    """
    size, longest = step_size(config), context_limit(config, model)
    record = record or CudaRecorder(model.device)
    layout = _kv_layout(config, model, block_bytes)
    most = min(longest, layout.tokens_in(memory.total))
    needs = []
    for one in (model,) if draft is None else (draft, model):
        kinds: list[Callable[[], Graphs | None]] = [
            partial(graphs_of, config, one, most, 1, memory, record),
            partial(pieces_of, config, one, 1, memory, record),
        ]
        if one.pages.state_pages:
            kinds = []  # nothing of it is recorded
        own = min(most, context_limit(config, one))
        needs.append(profile(one, size, own, memory, kinds))
    together = replace(
        needs[-1],
        step=max(one.step for one in needs),
        graphs=sum(one.graphs for one in needs),
        pictures=0 if model.weights.tower is None else config.picture_memory_bytes,
    )
    return gpu_kv_bytes(together, layout, longest)


def _kv_layout(config: EngineConfig, model: PagedModel, block_bytes: int) -> Layout:
    return Layout(model.kinds, config.block_size, block_bytes, step_size(config).tokens)


def context_limit(config: EngineConfig, model: PagedModel) -> int:
    """Tokens that a request may have by configuration and model."""
    of_model = getattr(model.weights.config, "max_position_embeddings", None)
    limits = (of_model, config.max_context_tokens)
    return min((limit for limit in limits if limit), default=_UNNAMED_CONTEXT)


def _info(
    config: EngineConfig,
    model: PagedModel,
    fingerprint: bytes,
    num_blocks: int,
    block_bytes: int,
) -> EngineInfo:
    tower = model.weights.tower
    info = EngineInfo(
        model=config.model_path,
        device=str(model.device),
        dtype=str(model.dtype).removeprefix("torch."),
        block_size=config.block_size,
        num_blocks=num_blocks,
        block_bytes=block_bytes,
        num_pages=len(model.memory) - 1,
        kinds=model.kinds,
        num_host_blocks=len(model.host_memory) // block_pages(model.kinds),
        step_tokens=step_size(config).tokens,
        max_context_tokens=context_limit(config, model),
        max_running_sequences=step_size(config).sequences,
        vocab_size=model.weights.config.vocab_size,
        eos_token_ids=model.weights.eos_token_ids,
        hash_extras=fingerprint,
        rotary_switch=model.weights.rotary_switch,
        limits_prompts=model.weights.limits_prompts,
        linears=shapes(model.linears),
        picture_token_id=None if tower is None else tower.token_id,
        has_mutual_pictures=tower is not None and tower.mutual is not None,
        logit_error=model.logit_error,
    )
    most = min(info.max_context_tokens, info.longest(info.memory_pages))
    return msgspec.structs.replace(info, max_context_tokens=most)


def step_size(config: EngineConfig) -> StepSize:
    """That of a configuration for which it has been chosen."""
    tokens, sequences = config.step_token_budget, config.max_running_requests
    assert tokens is not None
    assert sequences is not None
    return StepSize(tokens, sequences)


def make_graphs(parts: Parts, record: Record | None = None) -> DecodeGraphs:
    """Graphs for as many rows as may run at once, not recorded yet; of `record`, see them."""
    info = parts.info
    room = info.max_context_tokens, info.num_pages
    return graphs_of(parts.config, parts.model, *room, _memory(parts.model), record)


def make_pieces(parts: Parts, record: Record | None = None) -> PieceGraphs | None:
    """Graphs for steps with prompts, not recorded yet; `None` for layers that are not fused."""
    null_page = parts.info.num_pages
    return pieces_of(parts.config, parts.model, null_page, _memory(parts.model), record)


def _memory(model: PagedModel) -> DeviceMemory | None:
    return CudaMemory(model.device) if model.device.type == "cuda" else None


def graphs_of(
    config: EngineConfig,
    model: PagedModel,
    max_context: int,
    null_page: int,
    memory: DeviceMemory | None,
    record: Record | None = None,
) -> DecodeGraphs:
    """Graphs of decode steps; rows that only fill a batch up write to `null_page`."""
    padder = Padder(
        row_buckets(step_size(config).sequences),
        model.block_size,
        null_page,
        max_context,
        has_groups=config.prefix_grouping and not config.batch_invariant,
        has_lengths=model.weights.rotary_switch is not None,
        num_columns=model.pages.num_columns,
    )
    return DecodeGraphs(model.forward, padder, model.device, record, memory)


def pieces_of(
    config: EngineConfig,
    model: PagedModel,
    null_page: int,
    memory: DeviceMemory | None,
    record: Record | None = None,
) -> PieceGraphs | None:
    """Graphs of steps with prompts, as `make_pieces`."""
    decoder = model.weights.decoder
    if not isinstance(decoder, FusedDecoder):
        return None
    return PieceGraphs(model, decoder, null_page, step_size(config).tokens, record, memory)
