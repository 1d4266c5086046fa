"""Memory in huge pages: pieces of any size, each of its own."""

from __future__ import annotations

from itertools import pairwise

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


def test_a_piece_outlives_its_arena() -> None:
    piece = Arena().take(5)
    piece.fill_(7)
    assert piece.tolist() == [7] * 5


def test_lazy_memory_begins_with_a_huge_page() -> None:
    memory = lazy_zeros(3 << 20)
    assert memory.data_ptr() % (2 << 20) == 0
    assert len(memory) == 3 << 20
    assert memory[-1] == 0
