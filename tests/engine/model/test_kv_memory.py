"""How much memory the KV cache takes when nobody says it, and what is said where that is little."""

from __future__ import annotations

import logging

import pytest

from engine.api import EVERYTHING, EngineError, Kind
from engine.model import kv_memory
from engine.model.kv_memory import Layout, Needs, automatic_kv_bytes, gpu_kv_bytes

MIB = 2**20
BLOCK_SIZE, BLOCK_BYTES = 16, 16 * 23_040  # of the default model
LAYOUT = Layout((EVERYTHING,), BLOCK_SIZE, BLOCK_BYTES, 256)
CONTEXT = 8192
CONTEXT_MIB = CONTEXT * 23_040 // MIB  # 180


def blocks(free_mib: int, monkeypatch: pytest.MonkeyPatch, longest: int = CONTEXT) -> int:
    monkeypatch.setattr(kv_memory, "available_memory", lambda: free_mib * MIB)
    chosen = automatic_kv_bytes(LAYOUT, longest)
    return chosen // BLOCK_BYTES


def test_it_takes_an_eighth_of_much_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert blocks(16_384, monkeypatch) == 2048 * MIB // BLOCK_BYTES
    assert caplog.records == []


def test_a_small_container_still_holds_a_whole_context_and_what_else_runs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # What 1100 MiB leave: an eighth would hold 2,016 tokens.
    assert blocks(366, monkeypatch) == CONTEXT // BLOCK_SIZE
    assert blocks(CONTEXT_MIB + 128, monkeypatch) == CONTEXT // BLOCK_SIZE
    assert caplog.records == []


def test_no_more_than_a_useful_context_is_made_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert blocks(366, monkeypatch, longest=131_072) == CONTEXT // BLOCK_SIZE
    assert blocks(366, monkeypatch, longest=4096) == 4096 // BLOCK_SIZE


def test_less_than_a_useful_context_is_warned_of_with_figures_and_a_remedy(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        num_blocks = blocks(200, monkeypatch)
    (record,) = caplog.records
    assert num_blocks == (200 - 128) * MIB // BLOCK_BYTES
    for words in ("200 MiB", "72 MiB", f"{num_blocks * BLOCK_SIZE} tokens", "8192", "--kv-memory"):
        assert words in record.getMessage()


@pytest.mark.parametrize("free_mib", [0, 41, 60])
def test_a_context_of_no_use_is_refused_with_figures_and_a_remedy(
    free_mib: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(EngineError, match=rf"kv_memory: .*{free_mib} MiB .*--kv-memory"):
        blocks(free_mib, monkeypatch)


def test_a_model_of_short_contexts_needs_little(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert blocks(60, monkeypatch, longest=256) >= 256 // BLOCK_SIZE
    assert caplog.records == []


WINDOWED = Layout((EVERYTHING, Kind(window=1024, pages=5)), BLOCK_SIZE, BLOCK_BYTES, 256)


def test_layers_with_a_window_need_no_memory_for_the_whole_context(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # A sixth of 180 MiB for full attention, and 1,296 tokens of the rest.
    monkeypatch.setattr(kv_memory, "available_memory", lambda: (54 + 128) * MIB)
    assert automatic_kv_bytes(WINDOWED, CONTEXT) < 54 * MIB
    assert caplog.records == []
    monkeypatch.setattr(kv_memory, "available_memory", lambda: (50 + 128) * MIB)
    assert WINDOWED.tokens_in(automatic_kv_bytes(WINDOWED, CONTEXT)) < CONTEXT
    assert len(caplog.records) == 1


@pytest.mark.parametrize("layout", [LAYOUT, WINDOWED])
def test_a_sequence_takes_what_it_is_found_to_fit(layout: Layout) -> None:
    for num_tokens in (16, 496, 8192, 131_072):
        num_bytes = layout.bytes_for(num_tokens)
        assert layout.tokens_in(num_bytes) >= num_tokens
        assert layout.tokens_in(num_bytes - BLOCK_BYTES) < num_tokens
    assert layout.tokens_in(-1) == 0


def test_a_gpu_is_too_small_by_what_its_windows_need() -> None:
    least = WINDOWED.bytes_for(512)
    needs = Needs(total=int(least / 0.92) + 2, used=0, step=0, graphs=0)
    assert gpu_kv_bytes(needs, WINDOWED, CONTEXT) >= least
    with pytest.raises(EngineError, match="kv_memory: too little"):
        gpu_kv_bytes(Needs(least, 0, 0, 0), WINDOWED, CONTEXT)
