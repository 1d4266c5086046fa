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
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import torch
from rich.table import Table

from bench.common.device_rates import copy_rate, matmul_rate
from bench.common.figures import listed
from bench.kernels import rivals
from bench.kernels.batches import LLAMA_3_8B, Heads, paged, tenants
from bench.kernels.interpreted import interpreted
from bench.kernels.rivals import Race, Stopwatch, captured, described
from bench.registry import BenchError, Result
from kernels.types import AdaptedRows, Adapter, LowRank

BATCHES: Final = (1, 8, 32, 64, 128, 256)
CONTEXTS: Final = (512, 1024, 4096, 8192, 32768)
PREFILLS: Final = (2048, 8192, 16384)
NEW_TOKENS: Final = (20, 256)
ADAPTERS: Final = (1, 8, 32)
_BEHIND: Final = 8192
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
_CHUNK: Final = {
    "us": "attention of a sequence's new tokens, microseconds",
    "bandwidth_share": "bytes of KV a second, of the measured copy bandwidth",
    "sdpa_ratio": "time of torch's attention on contiguous KV, over this",
    "flashinfer_ratio": "time of FlashInfer's prefill over the same blocks, over this",
}
FIGURES: Final = {
    "copy_bytes_per_s": "device memory read and written by a copy, bytes a second",
    "matmul_flops": "a bf16 product of 8192 x 8192 matrices, operations a second",
    "error_decode": "largest difference from fp64 in decode",
    "error_decode_int8": "the same with int8 KV, from the stored values",
    "error_decode_fp8": "the same with fp8 KV, from the stored values",
    "error_grouped": "the same with shared prefixes",
    "error_prefill": "the same in prefill",
    "error_chunk": "the same of new tokens behind cached ones, split over keys",
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
        f"adapters_ratio_{count}": "time of torch's product of 64 rows, 4,096 to 4,096, over the "
        f"time of what {count} adapters of rank 16 add to it"
        for count in ADAPTERS
    },
    "error_adapters": "largest difference of what is added from the fp64 reference",
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
    **{
        f"chunk_{name}_q{count}": f"{meaning}; {count} tokens, the last of {_BEHIND}"
        for count in NEW_TOKENS
        for name, meaning in _CHUNK.items()
    },
}

_Figures = dict[str, float]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `bench.registry.Bench`."""
    parser.add_argument("--batches", type=int, nargs="+", choices=BATCHES, default=BATCHES)
    parser.add_argument("--contexts", type=int, nargs="+", choices=CONTEXTS, default=CONTEXTS)


def run(options: argparse.Namespace) -> Result:
    """See `bench.registry.Bench`. A kernel that is wrong or raises does not keep others from it."""
    if not torch.cuda.is_available():
        return _check_only()
    torch.manual_seed(torch.seed() % 2**32)  # fresh inputs in every run
    race = Race(Stopwatch())
    device = torch.device("cuda")
    figures = {
        "copy_bytes_per_s": copy_rate(device),
        "matmul_flops": matmul_rate(device, LLAMA_3_8B.dtype),
    }
    wrong = {}
    for name, part in _parts(race, options, figures["copy_bytes_per_s"], figures["matmul_flops"]):
        try:
            _keep_worst(figures, part())
        except Exception as error:  # noqa: BLE001 - a compiler's, a driver's: other parts go on
            wrong[name] = described(error)
    wrong |= _inaccurate(figures)
    name = torch.cuda.get_device_name()
    found = {"device": name, "measured": True, "wrong": wrong, "absent": race.absent}
    return Result(figures, list(_tables(figures, options)), found, _failure(wrong))


def _check_only() -> Result:
    try:
        errors = interpreted()
    except (subprocess.SubprocessError, ValueError) as error:
        raise BenchError(f"the interpreted kernels failed: {error}") from error
    figures = {f"error_{name}": error for name, error in errors.items()}
    wrong = _inaccurate(figures)
    device = "none: nothing was timed, the kernels were checked in small in Triton's interpreter"
    found: dict[str, object] = {"device": device, "measured": False, "wrong": wrong}
    return Result(figures, parameters=found, failure=_failure(wrong))


def _parts(
    race: Race, options: argparse.Namespace, bandwidth: float, rate: float
) -> Iterator[tuple[str, Callable[[], _Figures]]]:
    for batch in options.batches:
        for context in options.contexts:
            yield f"decode_b{batch}_c{context}", partial(_decode, race, batch, context, bandwidth)
    yield "grouped", partial(_grouped, race)
    yield "quantized", partial(_quantized, race)
    yield "linear", partial(_linear, race)
    for count in ADAPTERS:
        yield f"adapters_{count}", partial(_adapters, race, count)
    for context in PREFILLS:
        yield f"prefill_c{context}", partial(_prefill, race, context, rate)
    for count in NEW_TOKENS:
        yield f"chunk_q{count}", partial(_chunk, race, count, bandwidth)


def _decode(race: Race, batch: int, context: int, bandwidth: float) -> _Figures:
    if not _fits(LLAMA_3_8B, batch * context):
        return {}
    example = paged([(context, 1)] * batch, LLAMA_3_8B, torch.device("cuda"))
    error = example.error()
    works = [example.attend, example.in_order().attend]
    others = {"sdpa": rivals.sdpa, "flashinfer": rivals.flashinfer_decode}
    (seconds, ordered), theirs = race.medians(works, others, example)
    share = LLAMA_3_8B.bytes_of(batch * context) / seconds / bandwidth
    own = {"bandwidth_share": share, "paging_price": seconds / ordered - 1}
    return _named("decode", f"b{batch}_c{context}", error, seconds, own, theirs)


def _grouped(race: Race) -> _Figures:
    device = torch.device("cuda")
    example = tenants(_TENANTS, _PREFIX, _MEMBERS, _OWN, LLAMA_3_8B, device)
    error = example.error()
    works = [example.attend, example.without_groups().attend]
    others = {"grouped_flashinfer": rivals.flashinfer_cascade}
    (grouped, ungrouped), theirs = race.medians(works, others, example)
    return {
        "grouped_us": grouped * 1e6,
        "ungrouped_us": ungrouped * 1e6,
        "grouped_ratio": ungrouped / grouped,
        "error_grouped": error,
    } | {f"{name}_ratio": other / grouped for name, other in theirs.items()}


def _quantized(race: Race) -> _Figures:
    batch, context = _HEADLINE
    seqs, device = [(context, 1)] * batch, torch.device("cuda")
    plain, int8, fp8 = (paged(seqs, LLAMA_3_8B, device, kind) for kind in ("auto", "int8", "fp8"))
    works = [plain.attend, int8.attend, fp8.attend]
    seconds, *quantized = race.watch.medians([captured(work) for work in works])
    return {
        "error_decode_int8": int8.error(),
        "error_decode_fp8": fp8.error(),
        "decode_int8_ratio": seconds / quantized[0],
        "decode_fp8_ratio": seconds / quantized[1],
    }


def _linear(race: Race) -> _Figures:
    from kernels.triton.linear import linear  # Triton, which only a GPU needs

    x = torch.randn(64, 4096, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(14336, 4096, device="cuda", dtype=torch.bfloat16)
    works = [lambda: linear(x, weight, None), lambda: torch.nn.functional.linear(x, weight)]
    ours, theirs = race.watch.medians([captured(work) for work in works])
    return {"invariant_linear_ratio": theirs / ours}


def _adapters(race: Race, count: int) -> _Figures:
    from kernels.triton.adapters import adapt, placed  # Triton, which only a GPU needs

    x, weight = (torch.randn(n, 4096, device="cuda", dtype=torch.bfloat16) for n in (64, 4096))
    own = torch.randn(count, 2, 16, 4096, device="cuda", dtype=torch.bfloat16) / 64
    adapted = [
        AdaptedRows(Adapter(((LowRank(down, up, 0, 1.0),),)), torch.arange(first, 64, count))
        for first, (down, up) in enumerate(own)
    ]
    rows = placed(adapted, x.device)
    output, expected = torch.zeros_like(x), torch.zeros(64, 4096, dtype=torch.float64)
    adapt(x, output, rows, 0)
    for first, (down, up) in enumerate(own.cpu().double()):
        expected[first::count] = x[first::count].cpu().double() @ down.T @ up
    works = [lambda: adapt(x, output, rows, 0), lambda: torch.nn.functional.linear(x, weight)]
    error = (output.cpu().double() - expected).abs().max().item()
    ours, theirs = race.watch.medians([captured(work) for work in works])
    return {f"adapters_ratio_{count}": theirs / ours, "error_adapters": error}


def _prefill(race: Race, context: int, rate: float) -> _Figures:
    example = paged([(context, context)], LLAMA_3_8B, torch.device("cuda"))
    error = example.error()
    (seconds,), theirs = race.medians([example.attend], {"sdpa": rivals.sdpa}, example)
    # Two products of every query with the keys up to its own: half of all pairs.
    operations = 2 * context**2 * LLAMA_3_8B.num_heads * LLAMA_3_8B.head_dim
    own = {"matmul_share": operations / seconds / rate}
    return _named("prefill", f"c{context}", error, seconds, own, theirs)


def _chunk(race: Race, count: int, bandwidth: float) -> _Figures:
    example = paged([(_BEHIND, count)], LLAMA_3_8B, torch.device("cuda"))
    error = example.error()
    others = {"sdpa": rivals.sdpa, "flashinfer": rivals.flashinfer_prefill}
    (seconds,), theirs = race.medians([example.attend], others, example)
    own = {"bandwidth_share": LLAMA_3_8B.bytes_of(_BEHIND) / seconds / bandwidth}
    return _named("chunk", f"q{count}", error, seconds, own, theirs)


def _named(
    kind: str, place: str, error: float, seconds: float, own: _Figures, theirs: _Figures
) -> _Figures:
    """Figures of one place: the time, our `own`, and others' by their seconds."""
    ratios = {f"{name}_ratio": other / seconds for name, other in theirs.items()}
    figures = {"us": seconds * 1e6} | own | ratios
    named = {f"{kind}_{name}_{place}": value for name, value in figures.items()}
    return named | {f"error_{kind}": error}


def _fits(heads: Heads, keys: int) -> bool:
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    return heads.bytes_of(keys) < _SPARE_SHARE * free


def _keep_worst(figures: _Figures, found: _Figures) -> None:
    for name, value in found.items():
        is_error = name.startswith("error_")
        figures[name] = max(value, figures.get(name, 0.0)) if is_error else value


def _inaccurate(figures: _Figures) -> dict[str, str]:
    return {
        name: f"{error:.3g} from the fp64 reference"
        for name, error in figures.items()
        if name.startswith("error_") and not error < _TOLERANCE
    }


def _failure(wrong: dict[str, str]) -> str:
    return f"kernels raise, or differ by more than rounding: {wrong}" if wrong else ""


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
    yield listed(rest, FIGURES)
