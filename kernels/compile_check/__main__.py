"""Compiles every Triton kernel, at the shapes of real models, for GPUs that need not be there.

`python -m kernels.compile_check [--arch 80 90 100] [--only REGEX] [--json]` prints registers,
shared memory and spills of every kernel; the exit status is 1 if a kernel spills.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass

import torch
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.compile_check.variants import HEAD_DIMS, Variant, variants
from kernels.triton.arguments import Groups, Sequences, StatePages

_ARCHITECTURES = (80, 90, 100)
_POINTERS = {torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float32: "*fp32"}
_INDICES = {"tables_ptr", "parts_ptr", "merges_ptr", "arrivals_ptr", "query_starts_ptr"}
_INDICES |= {*Sequences._fields, *Groups._fields}
_INDICES |= {field for field in StatePages._fields if field.endswith("s_ptr")}
_FP32 = {"outputs_ptr", "sums_ptr", "sinks_ptr", "cos_ptr", "sin_ptr"}
_ALIGNED = re.compile(r"(?!table_stride)(.*[._])?(ptr|stride)|depth|columns|piece|inter")


@dataclass(frozen=True, slots=True)
class Usage:
    """What one compiled kernel takes of a GPU."""

    kernel: str
    arch: int
    registers: int  # of a thread
    shared_bytes: int  # of a program
    spill_bytes: int  # of a thread: its stack, which holds nothing but spilled registers


def compile_variant(variant: Variant, arch: int) -> Usage:
    """Compile for compute capability `arch` (90: sm_90). Raises what Triton raises."""
    signature, places = _signature(variant)
    constants = {places[name]: value for name, value in variant.constants.items()}
    # What a launch knows of real tensors: addresses, strides and widths divide by 16.
    aligned = {
        place: [["tt.divisibility", 16]]
        for name, place in places.items()
        if _ALIGNED.fullmatch(name) and name not in variant.constants
    }
    source = ASTSource(variant.kernel, signature, constants, aligned)
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
    parser.add_argument("--head-dim", type=int, nargs="+", choices=HEAD_DIMS, default=HEAD_DIMS)
    parser.add_argument(
        "--dtype",
        nargs="+",
        choices=("float16", "bfloat16", "float32"),
        default=("float16", "bfloat16"),
    )
    parser.add_argument("--only", default="", metavar="REGEX", help="kernels with such names")
    parser.add_argument("--json", action="store_true", help="one JSON array instead of a table")
    options = parser.parse_args(arguments)
    if knobs.runtime.interpret:
        parser.error("TRITON_INTERPRET is set: an interpreted kernel cannot be compiled")
    dtypes = tuple(getattr(torch, name) for name in options.dtype)
    usages = [
        compile_variant(variant, arch)
        for arch in options.arch
        for variant in variants(dtypes, tuple(options.head_dim), arch)
        if re.search(options.only, variant.name)
    ]
    if options.json:
        print(json.dumps([asdict(usage) for usage in usages], indent=1))
    else:
        print(f"{'kernel':<56} {'arch':>6} {'registers':>9} {'shared B':>9} {'spill B':>8}")
        for usage in usages:
            print(
                f"{usage.kernel:<56} {'sm_' + str(usage.arch):>6} {usage.registers:>9} "
                f"{usage.shared_bytes:>9} {usage.spill_bytes:>8}"
            )
    return int(any(usage.spill_bytes for usage in usages))


def _signature(variant: Variant) -> tuple[dict[str, object], dict[str, tuple[int, ...]]]:
    """The types of all arguments, and where each of them and of their fields stands."""
    signature: dict[str, object] = {}
    places: dict[str, tuple[int, ...]] = {}
    for position, name in enumerate(variant.kernel.arg_names):
        kind = None if name in variant.constants else variant.tuple_of(name)
        if kind is None:
            signature[name], places[name] = _type(name, variant), (position,)
            continue
        fields = [f"{name}.{field}" for field in kind._fields]
        signature[name] = kind(*(_type(field, variant) for field in fields))
        places |= {field: (position, index) for index, field in enumerate(fields)}
    return signature, places


def _type(name: str, variant: Variant) -> str:
    if name in variant.constants:
        return "constexpr"
    if name in variant.types:
        return variant.types[name]
    name = name.rpartition(".")[2]
    if name in _INDICES:
        return "*i32"
    if name in ("slots_ptr", "positions_ptr"):
        return "*i64"
    if name in _FP32:
        return "*fp32"
    if name.endswith("ptr"):
        return _POINTERS[variant.dtype]
    return "fp32" if name in ("scale", "eps") else "i32"


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
