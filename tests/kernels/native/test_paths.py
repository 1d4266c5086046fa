"""The ways to multiply: each is right when it is forced, and the fastest one is found."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from kernels.linear import pack
from kernels.native import library, paths
from tests.kernels.batches import paged
from tests.kernels.test_attention import MIXED, assert_right, run
from tests.kernels.test_linear import SCHEMES, check_products, drawn

pytestmark = pytest.mark.skipif(not library.available(), reason="kernels/native is not built")


@pytest.fixture(autouse=True)
def _best_paths_afterwards() -> Iterator[None]:
    yield
    paths.use(dict.fromkeys(paths.KINDS, paths.PATHS[-1]))
    paths.use_tiles("small")


@pytest.fixture(params=paths.PATHS)
def path(request: pytest.FixtureRequest) -> paths.Path:
    """Forced; machines without it take the next one below."""
    forced: paths.Path = request.param
    paths.use(dict.fromkeys(paths.KINDS, forced))
    return forced


def test_products_are_right_by_every_path(path: paths.Path) -> None:
    for dtype, quantization in SCHEMES:
        check_products(dtype, quantization)


def test_attention_is_right_by_every_path(path: paths.Path) -> None:
    for head_dim in (33, 48, 64):
        example = paged([*MIXED, (300, 120)], 9, 3, head_dim, dtype=torch.bfloat16)
        assert_right("native", example)
        assert_right("native", example, sliding_window=70, softcap=5.0)


def test_a_row_has_the_same_bits_in_every_batch_by_every_path(path: paths.Path) -> None:
    product = pack([drawn(144, 832, dtype=torch.bfloat16)])
    x = drawn(150, 832, dtype=torch.bfloat16)
    together = product(x)
    for rows in (1, 7, 8, 33, 128):
        assert torch.equal(product(x[:rows]), together[:rows])


def test_a_path_that_the_machine_has_is_another_computation() -> None:
    product = pack([drawn(48, 64, dtype=torch.bfloat16)])
    x = drawn(3, 64, dtype=torch.bfloat16).float()
    x[:] += 1e-4  # what products of pairs round away first
    example = paged([(90, 90)], 9, 3, dtype=torch.bfloat16)
    for kind, compute in (
        ("bfloat16", lambda: product(x)),
        ("attention", lambda: run("native", example)),
    ):
        results = []
        for each in paths.available(kind)[:2]:
            paths.use({kind: each})
            results.append(compute())
        assert len(results) == 1 or not torch.equal(*results)


@pytest.mark.parametrize("size", paths.TILE_SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_is_right_by_tiles_of_every_size(
    size: paths.TileSize, dtype: torch.dtype, path: paths.Path
) -> None:
    paths.use_tiles(size)
    for head_dim in (33, 64):
        # More keys than a large tile has, more rows too, and queries from within a tile on.
        example = paged([(700, 450), (1100, 70), (530, 530)], 3, 1, head_dim, dtype=dtype)
        assert_right("native", example)
    assert_right("native", example, sliding_window=300, softcap=5.0)


@pytest.mark.parametrize("size", paths.TILE_SIZES)
def test_a_query_has_the_same_bits_however_rows_are_shared_out(size: paths.TileSize) -> None:
    paths.use_tiles(size)
    example = paged([(900, 500), (40, 1), (700, 300)], 3, 1)
    results = []
    for threads in (1, 2, 7):
        library.set_threads(threads)
        results.append(run("native", example))
    library.set_threads(torch.get_num_threads())
    assert all(torch.equal(result, results[0]) for result in results)


def test_tiles_of_another_size_round_otherwise() -> None:
    results = []
    example = paged([(900, 500)], 3, 1)
    for size in paths.TILE_SIZES:
        paths.use_tiles(size)
        results.append(run("native", example))
    assert not torch.equal(*results)
