"""Layers in pages: few of them, hardly anything empty, and each layer in a place of its own."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
import torch

from engine.api.kinds import EVERYTHING, Kind
from engine.model.layers.layout import AttentionCall, AttentionLayout, PageLayout

BLOCK = 16


def call(
    window: int | None = None, heads: int = 2, head_dim: int = 8, reads: int | None = None
) -> AttentionCall:
    return AttentionCall(4, heads, head_dim, 1.0, window, None, reads=reads)


def pages_of(*calls: AttentionCall, by_kinds: bool = True) -> PageLayout:
    return AttentionLayout(calls, by_kinds).pages(BLOCK, torch.bfloat16)


def lost_share(pages: PageLayout) -> float:
    """Of the bytes of a block of all kinds, what no layer has."""
    own = sum(place.size for place in set(pages.places))
    return (pages.num_columns * pages.page_size - own) / own


@pytest.mark.parametrize(
    ("pattern", "num_layers", "kinds"),
    [
        # Gemma 3 27B: 10 layers see everything, 52 a window.
        ([*5 * [1024], None], 62, (Kind(pages=5), Kind(window=1024, pages=26))),
        # gpt-oss-20b
        ([128, None], 24, (Kind(pages=1), Kind(window=128, pages=1))),
        # Llama 4 Scout, whose chunks are as windows here
        ([*3 * [8192], None], 48, (Kind(pages=1), Kind(window=8192, pages=3))),
        # Gemma 2 2B
        ([4096, None], 26, (Kind(pages=1), Kind(window=4096, pages=1))),
        ([None], 30, (EVERYTHING,)),
        ([4096], 32, (Kind(window=4096),)),
    ],
)
def test_a_block_has_few_pages_and_hardly_anything_in_them_is_empty(
    pattern: list[int | None], num_layers: int, kinds: tuple[Kind, ...]
) -> None:
    calls = [call(pattern[layer % len(pattern)]) for layer in range(num_layers)]
    pages = pages_of(*calls)
    assert pages.kinds == kinds
    assert lost_share(pages) <= 0.02
    together = pages_of(*calls, by_kinds=False)
    assert together.kinds == (EVERYTHING,)
    assert lost_share(together) == 0.0


def test_layers_of_one_kind_lie_one_behind_the_other() -> None:
    pages = pages_of(*3 * [call()])
    memory = torch.arange(5 * pages.page_size).view(5, -1)
    blocks = memory.view(5, 3, 2, 2, BLOCK, 8)
    for layer, view in enumerate(pages.caches(memory).views):
        assert torch.equal(view, blocks[:, layer])
    assert pages.describe() == "[3, 2, 2, 16, 8]"


@pytest.mark.parametrize("by_kinds", [False, True])
def test_no_two_layers_have_an_element_in_common(by_kinds: bool) -> None:
    sizes = [call(7), call(None, heads=1, head_dim=32), call(7), call(9, heads=3), call(7)]
    pages = pages_of(*sizes, *sizes, call(9, heads=3, reads=8), by_kinds=by_kinds)
    memory = torch.zeros(pages.num_columns, pages.page_size)
    caches = pages.caches(memory)
    for view, column in zip(caches.views[:-1], caches.columns[:-1], strict=True):
        view[column] += 1
    assert memory.max() == 1
    assert int(memory.sum()) == sum(place.size for place in set(pages.places))
    assert len(pages.kinds) == (3 if by_kinds else 1)
    for (one, view), (other, its) in combinations(
        zip(caches.columns, caches.views, strict=True), 2
    ):
        is_same = view.data_ptr() == its.data_ptr() and one == other
        assert is_same == (view is caches.views[8] and its is caches.views[10])


def test_what_remembers_longest_comes_first() -> None:
    calls = [call(7), replace(call(None), chunk=8), call(9), call(None), call(9)]
    assert [(kind.window, kind.chunk) for kind in pages_of(*calls).kinds] == [
        (None, None),
        (9, None),
        (None, 8),
        (7, None),
    ]


def test_what_is_read_by_layers_that_see_otherwise_remembers_everything() -> None:
    alike = pages_of(call(7), call(), call(7, reads=0))
    assert [kind.window for kind in alike.kinds] == [None, 7]
    assert pages_of(call(7), call(), call(None, reads=0)).kinds == (EVERYTHING,)
    assert pages_of(call(7), call(), call(9, reads=0)).kinds == (EVERYTHING,)


def test_a_block_takes_what_all_layers_leave_and_what_pages_leave_empty() -> None:
    layer_bytes = 2 * 2 * BLOCK * 8 * 2
    even = AttentionLayout((call(7), call(), call(7), call(7)), by_kinds=True)
    assert even.block_bytes(BLOCK, torch.bfloat16) == 4 * layer_bytes
    odd = AttentionLayout((call(7), call(heads=3)), by_kinds=True)
    assert odd.block_bytes(BLOCK, torch.bfloat16) == 2 * layer_bytes * 3 // 2
    together = AttentionLayout(odd.calls)
    assert together.block_bytes(BLOCK, torch.bfloat16) == layer_bytes * 5 // 2


def test_on_every_rank_a_layer_lies_in_the_page_that_it_has_in_the_whole() -> None:
    """Alone, the parts of uneven heads would be laid out otherwise."""

    def layout(narrow: int, wide: int, whole: AttentionLayout | None = None) -> AttentionLayout:
        calls = (call(heads=wide), *3 * [call(7, heads=narrow)])
        return AttentionLayout(calls, by_kinds=True, whole=whole)

    def columns(layout: AttentionLayout) -> list[int]:
        return [place.column for place in layout.pages(BLOCK, torch.bfloat16).places]

    whole = layout(5, 8)
    parts = [(3, 4), (2, 4)]
    assert columns(layout(*parts[0])) != columns(whole)
    for narrow, wide in parts:
        part = layout(narrow, wide, whole)
        assert columns(part) == columns(whole)
        pages = part.pages(BLOCK, torch.bfloat16)
        assert pages.kinds == whole.pages(BLOCK, torch.bfloat16).kinds
        assert max(one.start + one.size for one in pages.places) == pages.page_size
