"""Products by matrix tiles (AMX), with the tiles emulated: most machines that test have none."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from kernels import linear, native
from kernels.linear import Quantization
from tests.kernels.test_linear import check_products

SOURCES = Path(native.__file__).parent / "native"
EMULATOR = Path(__file__).parent / "tile_emulator.h"
CALLS = {"_reorder": "pw_linear_pack", "_multiply": "pw_linear"}

pytestmark = pytest.mark.skipif(
    not native.available() or native.level() in ("plain", "avx2"),
    reason="the kernels with tiles need a compiled library and AVX-512 around the tiles",
)


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The library as it runs where there are tiles."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("tiles")
    objects = []
    for source in ("linear", "linear_amx", "linear_vnni", "pool"):
        objects.append(str(folder / f"{source}.o"))
        emulator = ["-include", str(EMULATOR)] if source == "linear_amx" else []
        options = ["-std=gnu11", "-O1", "-fPIC", "-pthread", *emulator]
        subprocess.run(
            [compiler, *options, "-c", str(SOURCES / f"{source}.c"), "-o", objects[-1]], check=True
        )
    path = folder / "tiles.so"
    subprocess.run([compiler, "-shared", "-pthread", *objects, "-lm", "-o", str(path)], check=True)
    return ctypes.CDLL(str(path))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_a_product_by_tiles_is_right_for_all_shapes(
    emulated: ctypes.CDLL,
    dtype: torch.dtype,
    quantization: Quantization,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, symbol in CALLS.items():
        function = getattr(emulated, symbol)
        function.argtypes = getattr(linear, name).argtypes
        function.restype = None
        monkeypatch.setattr(linear, name, function)
    for type_ in (1, 2):
        emulated.pw_linear_amx.restype = ctypes.c_void_p
        assert emulated.pw_linear_amx(ctypes.c_int64(type_)), "tiles are used"
    check_products(dtype, quantization)
