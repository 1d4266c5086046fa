"""Compiles the Triton kernels for GPUs that need not be there, and reports what they use.

`python -m kernels.compile_check [--arch 80 90 100] [--json]` prints registers, shared memory and
spills of every kernel; the exit status is 1 if a kernel spills.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels import triton_cache, triton_decode, triton_prefill
from kernels.triton_walk import Tiling, dot_type

_ARCHITECTURES = (80, 90, 100)
_POINTERS = {torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float32: "*fp32"}
_BLOCK_SIZE = 16
_UNALIGNED = {"table_stride", "partial_seq_stride", "partial_head_stride", "partial_split_stride"}


@dataclass(frozen=True, slots=True)
class Variant:
    """A kernel with the arguments it is compiled for."""

    name: str
    kernel: Any
    dtype: torch.dtype
    constants: dict[str, Any]
    options: dict[str, int]


@dataclass(frozen=True, slots=True)
class Usage:
    """What one compiled kernel takes of a GPU."""

    kernel: str
    arch: int
    registers: int  # of a thread
    shared_bytes: int  # of a program
    spill_bytes: int  # of a thread: its stack, which holds nothing but spilled registers


def variants(dtypes: tuple[torch.dtype, ...], head_dims: tuple[int, ...]) -> Iterator[Variant]:
    """Every kernel at the shapes of real models, without options of attention and with all."""
    for dtype in dtypes:
        for head_dim in head_dims:
            name = f"{str(dtype).removeprefix('torch.')} {head_dim}"
            shape = {"HEAD_DIM": head_dim, "DIM_PAD": triton.next_power_of_2(head_dim)}
            write = shape | {"BLOCK_SIZE": _BLOCK_SIZE, "HEADS": 8}
            yield Variant(f"write_slots {name}", triton_cache.write_slots, dtype, write, {})
            yield from _walks(name, dtype, shape, window=0, softcap=0.0)
            yield from _walks(f"{name} window softcap", dtype, shape, window=4096, softcap=50.0)
            merge = shape | {"WINDOW": 0, "SPLIT": triton_decode.SPLIT}
            yield Variant(f"merge_splits {name}", triton_decode.merge_splits, dtype, merge, {})


def compile_variant(variant: Variant, arch: int) -> Usage:
    """Compile for compute capability `arch` (90: sm_90). Raises what Triton raises."""
    kernel, names = variant.kernel, variant.kernel.arg_names
    signature = {name: _type(name, variant) for name in names}
    # What a launch knows of real tensors: addresses and strides divide by 16 elements or bytes.
    aligned = {
        (position,): [["tt.divisibility", 16]]
        for position, name in enumerate(names)
        if name.endswith(("_ptr", "_stride")) and name not in _UNALIGNED
    }
    source = ASTSource(kernel, signature, variant.constants, aligned)
    compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=variant.options)
    report = _resource_usage(compiled.asm["cubin"])
    usage = re.search(r"REG:(\d+) STACK:(\d+)", report)
    if usage is None:
        raise RuntimeError(f"cuobjdump said nothing of {variant.name}: {report}")
    return Usage(variant.name, arch, int(usage[1]), compiled.metadata.shared, int(usage[2]))


def main(arguments: list[str] | None = None) -> int:
    """Compile, print, and tell by the exit status whether all kernels are free of spills."""
    parser = argparse.ArgumentParser(prog="python -m kernels.compile_check", description=__doc__)
    parser.add_argument("--arch", type=int, nargs="+", default=_ARCHITECTURES)
    parser.add_argument("--head-dim", type=int, nargs="+", default=(64, 128, 256))
    parser.add_argument(
        "--dtype",
        nargs="+",
        choices=("float16", "bfloat16", "float32"),
        default=("float16", "bfloat16"),
    )
    parser.add_argument("--json", action="store_true", help="one JSON array instead of a table")
    options = parser.parse_args(arguments)
    if knobs.runtime.interpret:
        parser.error("TRITON_INTERPRET is set: an interpreted kernel cannot be compiled")
    dtypes = tuple(getattr(torch, name) for name in options.dtype)
    usages = [
        compile_variant(variant, arch)
        for arch in options.arch
        for variant in variants(dtypes, tuple(options.head_dim))
    ]
    if options.json:
        print(json.dumps([asdict(usage) for usage in usages], indent=1))
    else:
        print(f"{'kernel':<52} {'arch':>6} {'registers':>9} {'shared B':>9} {'spill B':>8}")
        for usage in usages:
            print(
                f"{usage.kernel:<52} {'sm_' + str(usage.arch):>6} {usage.registers:>9} "
                f"{usage.shared_bytes:>9} {usage.spill_bytes:>8}"
            )
    return int(any(usage.spill_bytes for usage in usages))


def _walks(
    name: str, dtype: torch.dtype, shape: dict[str, int], *, window: int, softcap: float
) -> Iterator[Variant]:
    """The kernels that walk keys: prefill, and decode of one split and of several."""
    head_dim = shape["HEAD_DIM"]
    group = 3 if head_dim == 64 else 8
    constants = shape | {
        "GROUP": group,
        "WINDOW": window,
        "SOFTCAP": softcap,
        "BLOCK_SIZE": _BLOCK_SIZE,
        "DOT_TYPE": dot_type(dtype),
    }

    def variant(name: str, kernel: Any, tiling: Tiling, **more: int) -> Variant:
        options = tiling.options()
        cut = {"ROWS": tiling.rows, "TILE": options.pop("TILE")}
        return Variant(name, kernel, dtype, constants | cut | more, options)

    cut = triton_prefill.tiling(group, head_dim, dtype)
    yield variant(f"attend_chunk {name}", triton_prefill.attend_chunk, cut)
    cut = triton_decode.tiling(group, head_dim, dtype)
    for suffix, whole in ((" whole", True), ("", False)):
        yield variant(
            f"attend_split {name}{suffix}",
            triton_decode.attend_split,
            cut,
            SPLIT=triton_decode.SPLIT,
            WHOLE=whole,
        )


def _type(name: str, variant: Variant) -> str:
    if name in variant.constants:
        return "constexpr"
    if name in ("tables_ptr", "query_starts_ptr", "context_lens_ptr"):
        return "*i32"
    if name == "slots_ptr":
        return "*i64"
    if name == "partial_ptr":
        return "*fp32"
    if name.endswith("_ptr"):
        return _POINTERS[variant.dtype]
    return "fp32" if name == "scale" else "i32"


def _resource_usage(cubin: bytes) -> str:
    """What the machine code says of itself: `REG:40 STACK:0 SHARED:0 ...`."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run(
            [knobs.nvidia.cuobjdump.path, "-res-usage", file.name],
            capture_output=True,
            text=True,
            check=True,
        )
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
