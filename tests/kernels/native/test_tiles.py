"""Products and attention by matrix tiles (AMX), with the tiles emulated: most machines that test
have none."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from kernels.native import library
from kernels.types import AttentionShape, Quantization
from tests.kernels.batches import drawn_sinks, paged
from tests.kernels.test_attention import assert_right
from tests.kernels.test_linear import check_products

if not library.available() or library.level() in ("plain", "avx2", "avx512"):
    pytest.skip(
        "the code with tiles needs a compiled library and what AVX-512 has around the tiles",
        allow_module_level=True,
    )

from kernels.native import attention as native_attention
from kernels.native import linear as native_linear
from tests.kernels.native.test_attention import shared

pytestmark = pytest.mark.exhaustive

SOURCES = Path(library.__file__).parent
EMULATOR = Path(__file__).parent / "tile_emulator.h"
LENGTHS = [(300, 1), (40, 40), (17, 3), (1, 1), (530, 17), (257, 2), (300, 90)]
USED = (
    "attention/attention",
    "attention/plan",
    "isa_amx",
    "linear/floats",
    "linear/grouped",
    "linear/linear",
    "linear/tiles",
    "linear/words",
    "processor/pool",
)
USE_TILES = '#include "processor/cpu.h"\npw_level pw_cpu_level(void) { return PW_AMX; }\n'


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The library as it runs where there are tiles."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("tiles")
    level = folder / "level.c"
    level.write_text(USE_TILES)
    sources = [str(SOURCES / f"{name}.c") for name in USED]
    built = folder / "tiles.so"
    options = ["-std=gnu11", "-O1", "-fPIC", "-pthread", "-shared", "-include", str(EMULATOR)]
    options += [f"-Dpw_attention_{other}=pw_attention_amx" for other in library.LEVELS[:-1]]
    files = [*sources, str(level), "-lm", "-o", str(built)]
    subprocess.run([compiler, *options, "-I", str(SOURCES), *files], check=True)
    return ctypes.CDLL(str(built))


@pytest.fixture(autouse=True)
def _used(emulated: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, symbol in (
        (native_linear, "_reorder", "pw_linear_pack"),
        (native_linear, "_multiply", "pw_linear"),
        (native_attention, "_attend", "pw_attend"),
    ):
        function, bound = getattr(emulated, symbol), getattr(module, name)
        function.argtypes, function.restype = bound.argtypes, bound.restype
        monkeypatch.setattr(module, name, function)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_a_product_is_right_for_all_shapes(dtype: torch.dtype, quantization: Quantization) -> None:
    check_products(dtype, quantization)


@pytest.mark.parametrize("heads", [(9, 3), (16, 1), (5, 5)])
@pytest.mark.parametrize("head_dim", [32, 64, 96, 33])
@pytest.mark.parametrize("block_size", [7, 16])
def test_attention_is_right_for_all_shapes(
    heads: tuple[int, int], head_dim: int, block_size: int
) -> None:
    assert_right("native", paged(LENGTHS, *heads, head_dim, block_size, torch.bfloat16))


@pytest.mark.parametrize(("window", "softcap"), [(1, None), (20, 5.0), (300, None), (None, 5.0)])
def test_windows_and_softcaps_are_kept(window: int | None, softcap: float | None) -> None:
    example = paged(LENGTHS, 9, 3, dtype=torch.bfloat16)
    assert_right("native", example, window, softcap)
    assert_right("native", example, window, softcap, chunk=70, sinks=drawn_sinks(9))


@pytest.mark.parametrize("shape", [(9, 3, 64), (16, 1, 96), (2, 2, 32)])
def test_nested_groups_are_right(shape: tuple[int, int, int]) -> None:
    assert_right("native", shared(torch.bfloat16, *shape))


@pytest.mark.parametrize("head_dim", [16, 64, 96])
def test_attention_to_codes_is_right(head_dim: int) -> None:
    example = paged(LENGTHS, 9, 3, head_dim, dtype=torch.bfloat16).quantized()
    assert_right("native", example)
    assert_right("native", shared(torch.bfloat16, 16, 1, head_dim).quantized())


@pytest.mark.parametrize("heads", [(9, 3), (32, 8), (8, 1)])
def test_right_tiles_pass_the_trial_before_they_are_used(
    heads: tuple[int, int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    num_heads, num_kv_heads = heads
    shape = AttentionShape(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=64,
        dtype=torch.bfloat16,
        block_size=16,
        storage=torch.bfloat16,
    )

    def example() -> torch.Tensor:
        return native_attention._example(shape)

    with_tiles = example()
    monkeypatch.undo()  # to this machine's own library
    results = [with_tiles, example()]
    monkeypatch.setattr(library, "level", lambda: "amx")
    library.trust_tiles(results.pop)
    assert "AMX" not in caplog.text
