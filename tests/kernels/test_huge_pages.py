"""Memory in huge pages: pieces of any size, each of its own."""

from __future__ import annotations

from itertools import pairwise
from mmap import mmap
from weakref import ref

import pytest
import torch

from kernels import huge_pages
from kernels.huge_pages import Arena, lazy_zeros


def test_pieces_of_an_arena_are_zero_aligned_and_apart() -> None:
    arena = Arena()
    sizes = [1, 64, 100, 20 << 20, 30 << 20, 40 << 20, 3]
    pieces = [arena.take(size) for size in sizes]
    assert [len(piece) for piece in pieces] == sizes
    assert all(piece.data_ptr() % 64 == 0 for piece in pieces)
    spans = sorted((piece.data_ptr(), piece.data_ptr() + len(piece)) for piece in pieces)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert all(piece[0] == piece[-1] == 0 for piece in pieces)


def test_pieces_are_written_whatever_mode_their_chunk_was_made_in() -> None:
    arena = Arena()
    with torch.inference_mode():
        arena.take(1)
        inside = arena.take(1)
    for piece in (inside, arena.take(1), lazy_zeros(1)):
        piece.fill_(7)
        with torch.inference_mode():
            assert piece.add_(1).tolist() == [8]


def test_a_piece_outlives_its_arena() -> None:
    piece = Arena().take(5)
    piece.fill_(7)
    assert piece.tolist() == [7] * 5


def test_a_piece_of_many_pages_takes_none_of_the_others_chunk() -> None:
    arena = Arena()
    first, large, second = arena.take(64), arena.take(40 << 20), arena.take(64)
    assert second.data_ptr() == first.data_ptr() + 64
    assert large.untyped_storage().data_ptr() != first.untyped_storage().data_ptr()


def test_an_arena_keeps_no_chunk_of_which_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chunks: list[ref[mmap]] = []

    def noted(*args: int, **kwargs: int) -> mmap:
        chunk = mmap(*args, **kwargs)
        chunks.append(ref(chunk))
        return chunk

    monkeypatch.setattr(huge_pages, "mmap", noted)
    arena = Arena()
    pieces = [arena.take(16 << 20), arena.take(16 << 20), arena.take(40 << 20)]
    assert [chunk() is not None for chunk in chunks] == [True, True]
    del pieces[:2]
    assert [chunk() is not None for chunk in chunks] == [False, True]
    del pieces[0]
    assert chunks[1]() is None


def test_lazy_memory_begins_with_a_huge_page() -> None:
    memory = lazy_zeros(3 << 20)
    assert memory.data_ptr() % (2 << 20) == 0
    assert len(memory) == 3 << 20
    assert memory[-1] == 0


def test_memory_that_was_made_ready_holds_what_it_held() -> None:
    memory = lazy_zeros(5 << 20)
    memory[4097] = 7
    huge_pages.populate(memory[4096 : 3 << 20])
    assert memory[4097] == 7
    assert int(memory.sum()) == 7
