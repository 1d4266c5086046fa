"""Models whose layers keep a state, in two processes: each has a part of every product, and all
keys and states.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from engine.assembly.assemble import make_core
from engine.assembly.parts import Parts, load_parts
from engine.config import EngineConfig
from engine.model.layers.eager.decoder import EagerDecoder
from engine.model.layers.eager.products import PackedLinear
from engine.model.layers.shard import Gathered
from engine.model.load import load_model
from kernels.native import library
from kernels.types import Linear
from tests.engine.model.states import config_of, saved
from tests.engine.model.test_parallel import leading
from tests.engine.model.test_states import chats

OTHERS = ("falcon_h1", "jamba", "kimi_linear", "mamba2", "minimax", "nemotron_h", "olmo_hybrid")

pytestmark = pytest.mark.skipif(not library.available(), reason="kernels/native is not built")


@contextmanager
def in_two_processes(config: EngineConfig) -> Iterator[Parts]:
    """With twice the memory, as each has all keys and states."""
    room, host = 2 * (config.kv_memory_bytes or 0), 2 * config.host_memory_bytes
    config = msgspec.structs.replace(
        config, tensor_parallel=2, kv_memory_bytes=room, host_memory_bytes=host
    )
    parts = load_parts(config)
    try:
        yield parts
    finally:
        leading(parts).followers.close()


@pytest.mark.parametrize(
    "family",
    [
        *("qwen3_next", "granitemoehybrid", "lfm2"),
        *(pytest.param(one, marks=pytest.mark.exhaustive) for one in OTHERS),
    ],
)
def test_turns_go_on_from_states_swapped_and_evicted_ones_too(family: str, tmp_path: Path) -> None:
    model = saved(family, tmp_path)
    config = config_of(tmp_path, 34, 6, host_memory_bytes=1 << 21, speculation="lookup")
    with in_two_processes(config) as parts:
        core = make_core(parts)
        chats(core, model, num_turns=2)
        assert core.stats().swapped_in > 0
        assert core.stats().cached_tokens > 0


@pytest.mark.parametrize("quantize", ["none", "int8"])
def test_each_process_reads_half_of_the_weights_and_gets_the_same_bits(
    quantize: str, tmp_path: Path
) -> None:
    saved("lfm2", tmp_path)
    config = config_of(tmp_path, 34, 6, quantize=quantize)
    whole = load_model(config, by_kinds=True)
    with in_two_processes(config) as parts:
        assert parts.model.logit_error == whole.logit_error
        assert parts.model.block_bytes == 2 * whole.block_bytes
        cut, uncut = (products(one.weights.decoder) for one in (parts.model, whole))
        assert any(isinstance(one, Gathered) for one in cut)
        for part, product in zip(cut, uncut, strict=True):
            share = part.nbytes / product.nbytes
            assert 0.5 <= share < 0.6 if isinstance(part, Gathered) else share == 1


def products(decoder: object) -> list[Linear]:
    assert isinstance(decoder, EagerDecoder)
    return [one._product for one in decoder.model.modules() if isinstance(one, PackedLinear)]
