"""From an `EngineConfig` to a core that is ready to serve."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec
import torch
from transformers.utils import logging as transformers_logging

from engine.api import EngineError, EngineInfo
from engine.config import EngineConfig
from engine.constraint.follower import Followers
from engine.constraint.held_drafts import Held
from engine.constraint.mask_turns import Turns
from engine.constraint.masks import Masks
from engine.draft.combined import LookupFirst
from engine.draft.drafter import Drafter
from engine.draft.lookup import PromptLookup
from engine.draft.worth import FREE_ROWS, RowCosts
from engine.draft_model.drafter import DraftModel
from engine.draft_model.loading import load_draft
from engine.grammar.grammars import Grammars
from engine.grammar.vocabulary import Vocabulary, load_vocabulary
from engine.model.calibration import (
    MOST_KEYS,
    MOST_ROWS,
    calibrate,
    calibrate_replay,
    calibrate_rows,
    calibrate_steps,
)
from engine.model.fingerprint import model_fingerprint
from engine.model.kernel_paths import (
    Choice,
    choose_kernel_paths,
    measured_row_costs,
    measured_step_tokens,
    rounding,
)
from engine.model.kv_memory import automatic_kv_bytes, gpu_kv_bytes
from engine.model.layers.fused import FusedDecoder
from engine.model.layers.paged_model import PagedModel
from engine.model.load import load_model
from engine.model.parallel.start import followers_of
from engine.model.start_errors import memory_for
from engine.model.step_size import StepSize, with_step_size
from engine.run.graphs.decode import DecodeGraphs
from engine.run.graphs.padding import Padder, row_buckets
from engine.run.graphs.pieces import PieceGraphs
from engine.run.graphs.recording import CudaRecorder, Record
from engine.run.memory_profile import CudaMemory, DeviceMemory, Graphs, profile
from engine.run.runner import AheadRunner, ModelRunner
from engine.schedule.swap_or_recompute import FREE_COPIES, CostModel
from engine.serve.core import EngineCore
from engine.system.threads import threads_of_rank
from kernels import backends
from kernels.sampling import draw
from kernels.types import Masks as TokenMasks

_log = logging.getLogger(__name__)

_GRAPHS_SHARE = 1 / 32
"""Of a GPU's memory: what CUDA graphs of either kind may take of it."""


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


def load_core(config: EngineConfig, tell: Callable[[str], None] = lambda _: None) -> EngineCore:
    """Load the model, allocate its KV memory and build the engine around them.

    `tell` hears of each step that is done. Raises `EngineError` if the model cannot be served or
    the memory holds no block.
    """
    parts = load_parts(config, tell)
    tell("memory")
    return make_core(parts)


def make_core(parts: Parts) -> EngineCore:
    """The engine that is built from `parts`, with what its configuration says is to guess."""
    followers = Followers()
    runner, graphs = make_runner(parts, followers)
    guesses = parts.config.speculation != "off"
    row_costs = _row_costs(parts, graphs) if guesses else FREE_ROWS
    drafter = make_drafter(parts, followers)
    grammars = None if parts.vocabulary is None else Grammars(parts.vocabulary)
    return EngineCore(
        parts.config,
        parts.info,
        runner,
        parts.costs,
        row_costs,
        drafter,
        grammars,
        turns=Turns(followers),
    )


def make_runner(
    parts: Parts, followers: Followers | None = None
) -> tuple[ModelRunner, DecodeGraphs | None]:
    """What computes steps: on a GPU ahead of the host, and decode steps by replaying graphs."""
    config = parts.config
    costs = parts.costs if parts.info.num_host_blocks else None
    grouping = config.prefix_grouping
    masks = None if parts.vocabulary is None else Masks(parts.vocabulary, followers)
    if parts.model.device.type != "cuda":
        return ModelRunner(parts.model, costs, grouping, masks=masks), None
    record = CudaRecorder(parts.model.device)
    graphs, pieces = make_graphs(parts, record), make_pieces(parts, record)
    graphs.record()
    if pieces is not None:
        pieces.record()
    if costs is not None and len(graphs):
        calibrate_replay(costs, parts.model, graphs.replay_smallest)
    # Compiled now, so that the first request which is sampled does not wait for a compiler.
    for dtype in {parts.model.dtype, torch.float32}:
        _draw_once(parts, dtype)
    return AheadRunner(parts.model, costs, grouping, graphs, pieces, masks=masks), graphs


def make_drafter(parts: Parts, followers: Followers | None = None) -> Drafter | None:
    """What the configuration says is to guess."""
    config, draft = parts.config, parts.draft
    if config.speculation == "off":
        return None
    lookup: Drafter = PromptLookup()
    if parts.vocabulary is not None:
        lookup = Held(lookup, followers or Followers())
    return lookup if draft is None else LookupFirst(lookup, make_draft_model(parts, draft))


def make_draft_model(parts: Parts, draft: PagedModel) -> DraftModel:
    """What guesses with `draft`, for as many sequences and tokens as the model answers."""
    config, info = parts.config, parts.info
    assert config.draft_model_path is not None, "it was loaded from there"
    drafting = msgspec.structs.replace(
        config, model_path=config.draft_model_path, draft_model_path=None, speculation="off"
    )
    own = replace(
        parts,
        model=draft,
        vocabulary=None,
        info=msgspec.structs.replace(
            info,
            num_host_blocks=0,
            vocab_size=draft.weights.config.vocab_size,
            max_context_tokens=_draft_limit(config, info, draft),
            hash_extras=model_fingerprint(drafting, draft.dtype),
            rotary_switch=draft.weights.rotary_switch,
        ),
    )
    runner, graphs = make_runner(own)
    return DraftModel(
        runner,
        own.info,
        info.vocab_size,
        _row_costs(own, graphs),
        _step_size(config).tokens,
        config.itl_target_ms / 4000,
    )


def _row_costs(parts: Parts, graphs: DecodeGraphs | None) -> RowCosts:
    """What decode steps of the model take, by their rows."""
    config, info, model = parts.config, parts.info, parts.model
    rows, keys = min(info.max_running_sequences, MOST_ROWS), min(info.max_context_tokens, MOST_KEYS)
    replay = graphs.replay_smallest if graphs else None
    measure = partial(calibrate_rows, model, rows, keys, replay)
    if model.device.type != "cpu":
        return measure()
    name = f"{info.hash_extras.hex()} {config.block_size} {rows} {keys}"
    return measured_row_costs(config, name, measure)


def _draft_limit(config: EngineConfig, info: EngineInfo, draft: PagedModel) -> int:
    """Tokens of the longest sequence that is guessed for: what has other rotary factors than its
    beginning had would have to be computed anew.
    """
    switch = draft.weights.rotary_switch
    limit = min(info.max_context_tokens, _context_limit(config, draft))
    return limit if switch is None else min(limit, switch)


def _draw_once(parts: Parts, dtype: torch.dtype) -> None:
    """Of scores of that type: the model's own, or with a bias or penalties."""
    device = parts.model.device
    scores = torch.zeros(1, parts.info.vocab_size, dtype=dtype, device=device)
    states = torch.zeros(1, dtype=torch.int64, device=device)
    masks = None
    if parts.vocabulary is not None:
        words = torch.from_numpy(parts.vocabulary.new_words(1)).to(device)
        masks = TokenMasks(torch.zeros(1, dtype=torch.int64, device=device), words)
    draw(scores, states, torch.ones(4, 1, dtype=torch.float64, device=device), masks)


def make_graphs(parts: Parts, record: Record | None = None) -> DecodeGraphs:
    """Graphs for as many rows as may run at once, not recorded yet; of `record`, see them."""
    info = parts.info
    room = info.max_context_tokens, info.num_blocks
    return _graphs(parts.config, parts.model, *room, _memory(parts.model), record)


def make_pieces(parts: Parts, record: Record | None = None) -> PieceGraphs | None:
    """Graphs for steps with prompts, not recorded yet; `None` for layers that are not fused."""
    null_block = parts.info.num_blocks
    return _pieces(parts.config, parts.model, null_block, _memory(parts.model), record)


def _memory(model: PagedModel) -> DeviceMemory | None:
    return CudaMemory(model.device) if model.device.type == "cuda" else None


def _graphs(
    config: EngineConfig,
    model: PagedModel,
    max_context: int,
    null_block: int,
    memory: DeviceMemory | None,
    record: Record | None = None,
) -> DecodeGraphs:
    padder = Padder(
        row_buckets(_step_size(config).sequences),
        model.block_size,
        null_block,
        max_context,
        has_groups=config.prefix_grouping and not config.batch_invariant,
        has_lengths=model.weights.rotary_switch is not None,
    )
    graphs = partial(DecodeGraphs, model.forward, padder, model.device, record)
    return graphs() if memory is None else graphs(memory.used, int(memory.total * _GRAPHS_SHARE))


def _pieces(
    config: EngineConfig,
    model: PagedModel,
    null_block: int,
    memory: DeviceMemory | None,
    record: Record | None = None,
) -> PieceGraphs | None:
    decoder = model.weights.decoder
    if not isinstance(decoder, FusedDecoder):
        return None
    pieces = partial(PieceGraphs, model, decoder, null_block, _step_size(config).tokens, record)
    return pieces() if memory is None else pieces(memory.used, int(memory.total * _GRAPHS_SHARE))


def load_parts(config: EngineConfig, tell: Callable[[str], None] = lambda _: None) -> Parts:
    """Load the model, allocate its KV memory and, if blocks may be swapped, measure it.

    For `tell` and errors see `load_core`.
    """
    transformers_logging.disable_progress_bar()
    threads = threads_of_rank(config.threads, config.tensor_parallel)
    config = msgspec.structs.replace(config, threads=threads)
    choice = choose_kernel_paths(config)
    remedy = "choose a smaller model, quantize to int8 or int4, or have more memory"
    with memory_for("the weights", remedy):
        with followers_of(config, choice) as followers:
            model = load_model(config, followers)
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
    # One block more, for rows that only fill a batch up, is nobody's.
    num_blocks = _kv_memory_bytes(config, model, draft, block_bytes) // block_bytes
    num_host_blocks = config.host_memory_bytes // host_block_bytes
    if num_blocks < 1:
        raise EngineError(f"kv_memory: a single block takes {block_bytes} bytes")
    if config.host_memory_bytes and not num_host_blocks:
        raise EngineError(f"host_memory: a single block takes {host_block_bytes} bytes")
    with memory_for(f"{num_blocks * block_bytes >> 20} MiB of KV cache", "lower kv_memory"):
        model.allocate(num_blocks + 1)
        if draft is not None:
            draft.allocate(num_blocks + 1)
    with memory_for(f"{config.host_memory_bytes >> 20} MiB behind it", "lower host_memory"):
        model.allocate_host(num_host_blocks)
    info = _info(config, model, fingerprint, block_bytes)
    size, ends = info.vocab_size, info.eos_token_ids
    vocabulary = load_vocabulary(Path(config.model_path), size, ends)
    info = msgspec.structs.replace(info, has_grammars=vocabulary is not None)
    costs = FREE_COPIES
    if num_host_blocks:
        costs = calibrate(model, _step_size(config).tokens, info.max_context_tokens)
    return Parts(config, info, model, costs, draft, vocabulary)


def _rounding(model: PagedModel, choice: Choice) -> str:
    """What KV hangs on to the last bit, where that matters; on a GPU no path of the CPU's."""
    if not model.batch_invariant:
        return ""
    return rounding(choice) if model.device.type == "cpu" else "batch-invariant"


def _with_step_size(config: EngineConfig, model: PagedModel, fingerprint: bytes) -> EngineConfig:
    """What is not configured is chosen: for a GPU by its size, for a CPU by its speed."""
    if config.step_token_budget is not None or model.device.type != "cpu":
        return with_step_size(config, model.device)
    measure = partial(calibrate_steps, model, _context_limit(config, model))
    tokens = measured_step_tokens(config, fingerprint.hex(), measure)
    return with_step_size(config, model.device, tokens)


def _step_size(config: EngineConfig) -> StepSize:
    tokens, sequences = config.step_token_budget, config.max_running_requests
    assert tokens is not None, "it has been chosen"
    assert sequences is not None, "it has been chosen"
    return StepSize(tokens, sequences)


def _kv_memory_bytes(
    config: EngineConfig, model: PagedModel, draft: PagedModel | None, block_bytes: int
) -> int:
    if config.kv_memory_bytes is not None:
        return config.kv_memory_bytes
    longest = _context_limit(config, model)
    if model.device.type != "cuda":
        return automatic_kv_bytes(block_bytes, config.block_size, longest)
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
    size, longest = _step_size(config), _context_limit(config, model)
    record = record or CudaRecorder(model.device)
    most = min(longest, memory.total // block_bytes * config.block_size)
    needs = []
    for one in (model,) if draft is None else (draft, model):
        kinds: list[Callable[[], Graphs | None]] = [
            partial(_graphs, config, one, most, 1, memory, record),
            partial(_pieces, config, one, 1, memory, record),
        ]
        own = min(most, _context_limit(config, one))
        needs.append(profile(one, size, own, memory, kinds))
    together = replace(
        needs[-1],
        step=max(one.step for one in needs),
        graphs=sum(one.graphs for one in needs),
    )
    return gpu_kv_bytes(together, block_bytes, config.block_size, longest)


def _context_limit(config: EngineConfig, model: PagedModel) -> int:
    """Tokens that a request may have by configuration and model; `sys.maxsize` for no limit."""
    of_model = getattr(model.weights.config, "max_position_embeddings", None)
    limits = (of_model, config.max_context_tokens)
    return min((limit for limit in limits if limit), default=sys.maxsize)


def _info(
    config: EngineConfig, model: PagedModel, fingerprint: bytes, block_bytes: int
) -> EngineInfo:
    num_blocks = len(model.memory) - 1
    return EngineInfo(
        model=config.model_path,
        device=str(model.device),
        dtype=str(model.dtype).removeprefix("torch."),
        block_size=config.block_size,
        num_blocks=num_blocks,
        block_bytes=block_bytes,
        num_host_blocks=len(model.host_memory),
        max_context_tokens=min(num_blocks * config.block_size, _context_limit(config, model)),
        max_running_sequences=_step_size(config).sequences,
        vocab_size=model.weights.config.vocab_size,
        eos_token_ids=model.weights.eos_token_ids,
        hash_extras=fingerprint,
        rotary_switch=model.weights.rotary_switch,
        logit_error=model.logit_error,
    )
