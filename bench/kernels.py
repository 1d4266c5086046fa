"""The GPU's kernels against the device's own bandwidth and arithmetic, and against others.

Llama-3-8B's heads (32 queries, 8 KV, 128 dimensions, bf16) over batches and contexts, sequences
that share their tenant's prefix, and prefill. Every case is checked against the fp64 reference in
the same run. Times are medians of replayed CUDA graphs, in turns, with the L2 cache flushed; the
device's own rates are those of `bench gpu`, of copies and products so large that neither matters.
Without CUDA nothing is timed: the same checks run in small, in Triton's interpreter.
"""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import torch
from rich.table import Table

from bench import kernel_rivals as rivals
from bench.gpu_rates import copy_rate, matmul_rate
from bench.gpu_timing import Stopwatch, Work
from bench.kernel_batches import LLAMA_3_8B, Heads, Paged, paged, tenants
from bench.kernel_check import interpreted
from bench.registry import BenchError, Result, parameters

BATCHES: Final = (1, 8, 32, 64, 128, 256)
CONTEXTS: Final = (512, 1024, 4096, 8192, 32768)
PREFILLS: Final = (2048, 8192, 16384)
_TENANTS, _PREFIX, _MEMBERS, _OWN = 4, 2048, 16, 128
_HEADLINE: Final = (64, 4096)
_TOLERANCE: Final = 0.02
"""Of outputs around 1 in bf16, whose steps there are 2^-8."""
_SPARE_SHARE: Final = 0.3
"""Of free memory that a case's keys may take; contiguous copies are made of them."""

_DECODE: Final = {
    "us": "decode attention, microseconds",
    "bandwidth_share": "bytes of KV a second, of the measured copy bandwidth",
    "paging_price": "time over the same on blocks that lie in order, less 1",
    "sdpa_ratio": "time of torch's attention on contiguous KV, over this",
    "flashinfer_ratio": "time of FlashInfer's decode over the same blocks, over this",
}
_PREFILL: Final = {
    "us": "causal prefill attention of one sequence, microseconds",
    "matmul_share": "operations a second, of the measured bf16 matmul rate",
    "sdpa_ratio": "time of torch's attention on contiguous KV, over this",
}
FIGURES: Final = {
    "copy_bytes_per_s": "device memory read and written by a copy, bytes a second",
    "matmul_flops": "a bf16 product of 8192 x 8192 matrices, operations a second",
    "error_decode": "largest difference from fp64 in decode",
    "error_decode_int8": "the same with int8 KV, from the stored values",
    "error_decode_fp8": "the same with fp8 KV, from the stored values",
    "error_grouped": "the same with shared prefixes",
    "error_prefill": "the same in prefill",
    "grouped_us": f"{_TENANTS} tenants x {_PREFIX} shared keys x {_MEMBERS} sequences with {_OWN} "
    "keys of their own: decode attention, microseconds",
    "ungrouped_us": "the same with every sequence for itself",
    "grouped_ratio": "ungrouped over grouped time",
    "grouped_flashinfer_ratio": "time of FlashInfer's cascade, over grouped time",
    "decode_int8_ratio": f"unquantized over int8 time, batch {_HEADLINE[0]}, {_HEADLINE[1]} keys",
    "decode_fp8_ratio": "the same with fp8",
    "invariant_linear_ratio": "time of torch's product over the batch-invariant one's: 64 rows, "
    "4,096 to 14,336",
    **{
        f"decode_{name}_b{batch}_c{context}": f"{meaning}; batch {batch}, {context} keys each"
        for batch in BATCHES
        for context in CONTEXTS
        for name, meaning in _DECODE.items()
    },
    **{
        f"prefill_{name}_c{context}": f"{meaning}; {context} tokens"
        for context in PREFILLS
        for name, meaning in _PREFILL.items()
    },
}

_Figures = dict[str, float]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `bench.registry.Bench`."""
    parser.add_argument("--batches", type=int, nargs="+", choices=BATCHES, default=BATCHES)
    parser.add_argument("--contexts", type=int, nargs="+", choices=CONTEXTS, default=CONTEXTS)


def run(options: argparse.Namespace) -> Result:
    """See `bench.registry.Bench`. Raises `BenchError` if a kernel is wrong."""
    if not torch.cuda.is_available():
        return _check_only(options)
    torch.manual_seed(torch.seed() % 2**32)  # fresh inputs in every run
    watch = Stopwatch()
    device = torch.device("cuda")
    figures = {
        "copy_bytes_per_s": copy_rate(device),
        "matmul_flops": matmul_rate(device, LLAMA_3_8B.dtype),
    }
    for batch in options.batches:
        for context in options.contexts:
            if _fits(LLAMA_3_8B, batch * context):
                _keep_worst(figures, _decode(watch, batch, context, figures["copy_bytes_per_s"]))
    for part in (_grouped(watch), _quantized(watch), _linear(watch)):
        _keep_worst(figures, part)
    for context in PREFILLS:
        _keep_worst(figures, _prefill(watch, context, figures["matmul_flops"]))
    _demand_accuracy(figures)
    found = parameters(options, device=torch.cuda.get_device_name(), measured=True)
    return Result(found, figures, list(_tables(figures, options)))


def _check_only(options: argparse.Namespace) -> Result:
    try:
        errors = interpreted()
    except (subprocess.SubprocessError, ValueError) as error:
        raise BenchError(f"the interpreted kernels failed: {error}") from error
    figures = {f"error_{name}": error for name, error in errors.items()}
    _demand_accuracy(figures)
    found = parameters(options, device="none: checked in Triton's interpreter", measured=False)
    title = "no CUDA here: nothing was timed, the kernels were checked in small"
    return Result(found, figures, [_listed(title, figures)])


def _decode(watch: Stopwatch, batch: int, context: int, bandwidth: float) -> _Figures:
    example = paged([(context, 1)] * batch, LLAMA_3_8B, torch.device("cuda"))
    error = example.error()
    works = [example.attend, example.in_order().attend]
    seconds, ordered, *others = _medians(watch, works, _rivals(example, rivals.flashinfer_decode))
    names = ("sdpa_ratio", "flashinfer_ratio")
    figures = {
        "us": seconds * 1e6,
        "bandwidth_share": LLAMA_3_8B.bytes_of(batch * context) / seconds / bandwidth,
        "paging_price": seconds / ordered - 1,
    } | {name: other / seconds for name, other in zip(names, others, strict=False)}
    named = {f"decode_{name}_b{batch}_c{context}": value for name, value in figures.items()}
    return named | {"error_decode": error}


def _grouped(watch: Stopwatch) -> _Figures:
    device = torch.device("cuda")
    example = tenants(_TENANTS, _PREFIX, _MEMBERS, _OWN, LLAMA_3_8B, device)
    error = example.error()
    works = [example.attend, example.without_groups().attend]
    others = [rivals.flashinfer_cascade] if rivals.has_flashinfer() else []
    grouped, ungrouped, *cascade = _medians(watch, works, [(other, example) for other in others])
    figures = {
        "grouped_us": grouped * 1e6,
        "ungrouped_us": ungrouped * 1e6,
        "grouped_ratio": ungrouped / grouped,
        "error_grouped": error,
    }
    if cascade:
        figures["grouped_flashinfer_ratio"] = cascade[0] / grouped
    return figures


def _quantized(watch: Stopwatch) -> _Figures:
    batch, context = _HEADLINE
    seqs, device = [(context, 1)] * batch, torch.device("cuda")
    plain, int8, fp8 = (paged(seqs, LLAMA_3_8B, device, kind) for kind in ("auto", "int8", "fp8"))
    seconds, *quantized = watch.medians([plain.attend, int8.attend, fp8.attend])
    return {
        "error_decode_int8": int8.error(),
        "error_decode_fp8": fp8.error(),
        "decode_int8_ratio": seconds / quantized[0],
        "decode_fp8_ratio": seconds / quantized[1],
    }


def _linear(watch: Stopwatch) -> _Figures:
    from kernels.triton_linear import linear  # Triton, which only a GPU needs

    x = torch.randn(64, 4096, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(14336, 4096, device="cuda", dtype=torch.bfloat16)
    ours, theirs = watch.medians(
        [lambda: linear(x, weight, None), lambda: torch.nn.functional.linear(x, weight)]
    )
    return {"invariant_linear_ratio": theirs / ours}


def _prefill(watch: Stopwatch, context: int, rate: float) -> _Figures:
    example = paged([(context, context)], LLAMA_3_8B, torch.device("cuda"))
    error = example.error()
    seconds, sdpa = _medians(watch, [example.attend], [(rivals.sdpa, example)])
    # Two products of every query with the keys up to its own: half of all pairs.
    operations = 2 * context**2 * LLAMA_3_8B.num_heads * LLAMA_3_8B.head_dim
    figures = {
        "us": seconds * 1e6,
        "matmul_share": operations / seconds / rate,
        "sdpa_ratio": sdpa / seconds,
    }
    named = {f"prefill_{name}_c{context}": value for name, value in figures.items()}
    return named | {"error_prefill": error}


def _rivals(
    example: Paged, flashinfer: Callable[[Paged], Work]
) -> list[tuple[Callable[[Paged], Work], Paged]]:
    makers = [rivals.sdpa, *([flashinfer] if rivals.has_flashinfer() else [])]
    return [(maker, example) for maker in makers]


def _medians(
    watch: Stopwatch, own: Sequence[Work], others: list[tuple[Callable[[Paged], Work], Paged]]
) -> list[float]:
    """Median seconds of our work and of the others', in turns."""
    return watch.medians([*own, *(make(example) for make, example in others)])


def _fits(heads: Heads, keys: int) -> bool:
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    return heads.bytes_of(keys) < _SPARE_SHARE * free


def _keep_worst(figures: _Figures, found: _Figures) -> None:
    for name, value in found.items():
        is_error = name.startswith("error_")
        figures[name] = max(value, figures.get(name, 0.0)) if is_error else value


def _demand_accuracy(figures: _Figures) -> None:
    wrong = {
        name: error
        for name, error in figures.items()
        if name.startswith("error_") and not error < _TOLERANCE
    }
    if wrong:
        raise BenchError(f"kernels differ from the fp64 reference by more than rounding: {wrong}")


def _tables(figures: _Figures, options: argparse.Namespace) -> Iterator[Table]:
    for name, meaning in _DECODE.items():
        table = Table("batch", *map(str, options.contexts), title=f"{meaning}; by keys each")
        for batch in options.batches:
            cells = [figures.get(f"decode_{name}_b{batch}_c{c}") for c in options.contexts]
            table.add_row(str(batch), *("" if cell is None else f"{cell:.4g}" for cell in cells))
        if any(f"decode_{name}_" in figure for figure in figures):
            yield table
    by_shape = tuple(f"decode_{name}_b" for name in _DECODE)
    rest = {name: value for name, value in figures.items() if not name.startswith(by_shape)}
    yield _listed("besides", rest)


def _listed(title: str, figures: _Figures) -> Table:
    table = Table("figure", "value", "meaning", title=title, title_justify="left")
    for name, value in figures.items():
        table.add_row(name, f"{value:.4g}", FIGURES[name])
    return table
