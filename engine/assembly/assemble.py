"""From an `EngineConfig` to a core that is ready to serve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import msgspec
import torch

from engine.api import EngineInfo
from engine.assembly.parts import (
    Parts,
    context_limit,
    load_parts,
    make_graphs,
    make_pieces,
    step_size,
)
from engine.config import EngineConfig
from engine.constraint.follower import Followers
from engine.constraint.held_drafts import Held
from engine.constraint.masks import Masks, Turns
from engine.draft.drafter import Drafter, LookupFirst
from engine.draft.lookup import PromptLookup
from engine.draft.worth import FREE_ROWS, RowCosts
from engine.draft_model.drafter import DraftModel
from engine.grammar.grammars import Grammars
from engine.model.calibration import MOST_KEYS, MOST_ROWS, calibrate_replay, calibrate_rows
from engine.model.fingerprint import model_fingerprint
from engine.model.kernel_paths import measured_row_costs
from engine.model.layers.paged_model import PagedModel
from engine.run.graphs.decode import DecodeGraphs
from engine.run.graphs.recording import CudaRecorder
from engine.run.runner import AheadRunner, ModelRunner
from engine.serve.core import EngineCore
from kernels.sampling import draw
from kernels.types import Masks as TokenMasks


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
    if runner.experts is not None:
        runner.experts.begin()
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
    if parts.model.pages.state_pages:  # modules that keep a state read a step's runs on the host
        return AheadRunner(parts.model, costs, grouping, masks=masks), None
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
            num_pages=0,
            kinds=draft.kinds,
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
        step_size(config).tokens,
        config.itl_target_ms / 4000,
    )


def _row_costs(parts: Parts, graphs: DecodeGraphs | None) -> RowCosts:
    config, info, model = parts.config, parts.info, parts.model
    rows, keys = min(info.max_running_sequences, MOST_ROWS), min(info.max_context_tokens, MOST_KEYS)
    replay = graphs.replay_smallest if graphs else None
    measure = partial(calibrate_rows, model, rows, keys, replay)
    if model.device.type != "cpu":
        return measure()
    name = f"{info.hash_extras.hex()} {config.block_size} {rows} {keys}"
    return measured_row_costs(config, name, measure)


def _draft_limit(config: EngineConfig, info: EngineInfo, draft: PagedModel) -> int:
    """Tokens of the longest sequence that is guessed for: all of them have to be in the draft's
    memory, and what has other rotary factors than its beginning had would be computed anew.
    """
    switch = draft.weights.rotary_switch
    room = info.num_blocks * info.block_size
    limit = min(info.max_context_tokens, context_limit(config, draft), room)
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
