"""What a GPU makes of models of random weights: decode, prefill, roofline, and the host's share.

Each shape is written to memory as a model folder, loaded as any model is, and driven through the
engine's own loop. The roofline of a decode step is the time in which the device copies as many
bytes as the step has to read (weights, and the KV of every context); that of a prefill is the time
in which it multiplies as much. Both rates are measured in the same run.

Without a GPU a tiny model runs on the CPU, which shows that everything works, and nothing more.
"""

from __future__ import annotations

import argparse
import gc
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Final, cast

import torch

from bench.common.device_rates import copy_rate, matmul_rate
from bench.gpu.loop import Case, Loop, Mode
from bench.registry import BenchError, Result
from engine.assembly.parts import Parts, load_parts
from engine.config import Device, Dtype, EngineConfig

_BATCHES: Final = (1, 8, 64, 256)
_ON_A_GPU: Final = {
    "shape": ["8b", "06b"],
    "context": 1024,
    "prefill": 16_384,
    "shared": 2048,
    "behind": 8192,
}
_ELSEWHERE: Final = {"shape": ["tiny"], "context": 64, "prefill": 512, "shared": 128, "behind": 256}
_REPEATS: Final = 2
_TURN_TOKENS: Final = 20
_OWN_TOKENS: Final = 64
"""Of a prompt behind a shared prefix."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder-only model; what a layer consists of is the same in both families."""

    family: str
    """As transformers names it."""
    vocab: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    is_tied: bool
    """Whether the product with the vocabulary uses the embedding."""

    @property
    def layer_weights(self) -> int:
        """Weights of all layers' matrix products."""
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def num_weights(self) -> int:
        """All of them, but for norms."""
        return self.layer_weights + (1 if self.is_tied else 2) * self.hidden * self.vocab

    def step_bytes(self, batch: int, context: float, item_bytes: int) -> float:
        """What a decode step reads: every product's weights, and the KV of every context."""
        weights = self.layer_weights + self.hidden * self.vocab
        kv = 2 * self.layers * self.kv_heads * self.head_dim * context
        return item_bytes * (weights + batch * kv)

    def prompt_flops(self, length: int) -> float:
        """Of a prompt's layers: products with weights, and causal attention."""
        attention = 2 * self.layers * self.heads * self.head_dim * length**2
        return 2 * self.layer_weights * length + attention

    def config(self) -> dict[str, Any]:
        """For `transformers.AutoConfig.for_model`."""
        return {
            "vocab_size": self.vocab,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "tie_word_embeddings": self.is_tied,
            "max_position_embeddings": 40960,
            "rope_theta": 500000.0,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        }


SHAPES = {
    "8b": Shape("llama", 128256, 4096, 14336, 32, 32, 8, 128, is_tied=False),
    "06b": Shape("qwen3", 151936, 1024, 3072, 28, 16, 8, 128, is_tied=True),
    "tiny": Shape("llama", 512, 64, 96, 2, 4, 2, 16, is_tied=True),
}
"""Those of Llama-3-8B and Qwen3-0.6B, and one that any machine can compute."""


def write_model(shape: Shape, folder: Path, device: torch.device, dtype: torch.dtype) -> None:
    """Make a model of random weights on `device`, and save it as transformers does."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.manual_seed(0)
    config = AutoConfig.for_model(shape.family, **shape.config())
    with device:
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.save_pretrained(folder)


FIGURES: Final = {
    "copy_gb_per_s": "the device's copy bandwidth, bytes read and written, GB/s",
    "matmul_tflop_per_s": "the device's rate of a large matrix product in the model's type",
    **{
        f"{shape}_{figure}": f"{shape}: {meaning}"
        for shape in SHAPES
        for figure, meaning in {
            "ready_s": "loading, checking and allocating, s",
            "prefill_tokens_per_s": "prompts computed through the engine, tokens/s",
            "turn_ms": f"{_TURN_TOKENS} tokens behind --behind cached ones: to the first token, ms",
            "prefill_matmul_share": "FLOPs of a prefill over the matrix rate, 0 ... 1",
            **{
                f"{figure}_b{batch}": meaning.format(batch)
                for batch in _BATCHES
                for figure, meaning in {
                    "decode_tokens_per_s": "decode at batch {}, tokens/s",
                    "decode_roofline_share": "bytes of a step at batch {} over the copy rate",
                    "host_gap_share": "share of a step at batch {} without work on the device",
                    "decode_tokens_per_s_eager": "decode at batch {} without CUDA graphs",
                    "decode_tokens_per_s_in_turn": "decode at batch {} without launching ahead",
                }.items()
            },
            "shared_tokens_per_s": "decode where tenants share long prefixes, tokens/s",
            "shared_tokens_per_s_ungrouped": "the same without prefix groups, tokens/s",
        }.items()
    },
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `bench.registry.Bench`."""
    parser.add_argument(
        "--shape",
        nargs="+",
        choices=sorted(SHAPES),
        help=f"of the models; this and other sizes: {_ON_A_GPU} on a GPU, {_ELSEWHERE} elsewhere",
    )
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--batches", nargs="+", type=int, default=list(_BATCHES), metavar="N")
    parser.add_argument("--context", type=int, help="tokens of each prompt")
    parser.add_argument("--prefill", type=int, help="tokens of all prompts")
    parser.add_argument("--steps", type=int, default=48, help="decode steps that are timed")
    parser.add_argument("--tenants", type=int, default=4, help="that share a prefix each")
    parser.add_argument("--behind", type=int, help="cached tokens that a chat's next turn follows")
    parser.add_argument("--shared", type=int, help="tokens of a shared prefix")
    parser.add_argument("--sequences", type=int, default=16, help="of each tenant")


def run(options: argparse.Namespace) -> Result:
    """See `bench.registry.Bench`."""
    name = options.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise BenchError("--device: there is no CUDA device here")
    device = torch.device(name)
    dtype = torch.bfloat16 if name == "cuda" else torch.float32
    for size, usual in (_ON_A_GPU if name == "cuda" else _ELSEWHERE).items():
        if getattr(options, size) is None:
            setattr(options, size, usual)
    if min(*options.batches, options.context, options.behind, options.steps, options.sequences) < 1:
        raise BenchError("--batches, --context, --behind, --steps and --sequences: at least 1")
    rates = {
        "copy_gb_per_s": copy_rate(device) / 1e9,
        "matmul_tflop_per_s": matmul_rate(device, dtype) / 1e12,
    }
    figures = dict(rates)
    for shape in options.shape:
        measured = _measure(SHAPES[shape], device, dtype, options, rates)
        figures |= {f"{shape}_{name}": value for name, value in measured.items()}
        _return_memory(device)
    found = {"device": name, "dtype": str(dtype)}
    if name == "cuda":
        found["device"] = torch.cuda.get_device_name(device)
    else:
        found["note"] = "this tells nothing of a GPU"
    return Result(figures, parameters=found)


def _measure(
    shape: Shape,
    device: torch.device,
    dtype: torch.dtype,
    options: argparse.Namespace,
    rates: dict[str, float],
) -> dict[str, float]:
    """All figures of one model, which is gone afterwards."""
    folder_bytes = shape.num_weights * dtype.itemsize
    with tempfile.TemporaryDirectory(dir=_memory_folder(folder_bytes)) as folder:
        write_model(shape, Path(folder), device, dtype)
        _return_memory(device)
        parts, ready = _load(Path(folder), device, dtype, options)
    loop = Loop(parts)
    copied, multiplied = rates["copy_gb_per_s"] * 1e9, rates["matmul_tflop_per_s"] * 1e12
    tokens, seconds = loop.prefill(options.context, options.prefill)
    flops = shape.prompt_flops(options.context) * tokens / options.context
    figures = {
        "ready_s": ready,
        "prefill_tokens_per_s": tokens / seconds,
        "prefill_matmul_share": flops / seconds / multiplied,
        "turn_ms": 1e3 * loop.turn(options.behind, _TURN_TOKENS),
    }
    for batch in options.batches:
        case = Case(batch, options.context, options.steps)
        timing = loop.decode(case, Mode())
        read = shape.step_bytes(batch, timing.context, dtype.itemsize)
        figures |= {
            f"decode_tokens_per_s_b{batch}": batch / timing.step,
            f"decode_roofline_share_b{batch}": read / copied / timing.step,
            f"host_gap_share_b{batch}": timing.gap,
        }
    middle = sorted(options.batches)[len(options.batches) // 2]
    for name, mode in loop.other_modes.items():
        timing = loop.decode(Case(middle, options.context, options.steps), mode)
        figures[f"decode_tokens_per_s_{name}_b{middle}"] = middle / timing.step
    return figures | _shared(loop, options)


def _shared(loop: Loop, options: argparse.Namespace) -> dict[str, float]:
    """Decode of tenants that share a prefix each, with prefix groups and without, in turns."""
    num_tokens = options.shared + _OWN_TOKENS
    batch = options.tenants * options.sequences
    case = Case(batch, num_tokens, options.steps, options.shared, options.tenants)
    steps: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(_REPEATS):
        for grouping, found in steps.items():
            found.append(loop.decode(case, Mode(prefix_grouping=grouping)).step)
    return {
        "shared_tokens_per_s": batch / median(steps[True]),
        "shared_tokens_per_s_ungrouped": batch / median(steps[False]),
    }


def _load(
    folder: Path, device: torch.device, dtype: torch.dtype, options: argparse.Namespace
) -> tuple[Parts, float]:
    """The model with memory, and how many seconds that took."""
    most = max(*options.batches, options.tenants * options.sequences)
    config = EngineConfig(
        model_path=str(folder),
        device=cast(Device, device.type),
        dtype=cast(Dtype, str(dtype).removeprefix("torch.")),
        max_running_requests=most,
    )
    start = perf_counter()
    parts = load_parts(config)
    return parts, perf_counter() - start


def _memory_folder(num_bytes: int) -> str | None:
    """Where so many bytes of files are kept in memory; `None`: where temporary files are."""
    shared = Path("/dev/shm")
    has_room = shared.is_dir() and shutil.disk_usage(shared).free > 1.2 * num_bytes
    return str(shared) if has_room else None


def _return_memory(device: torch.device) -> None:
    """What was allocated for models that are gone: an engine takes a share of what is free."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
