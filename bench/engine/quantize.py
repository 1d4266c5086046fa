"""What bfloat16, int8, int4, a checkpoint and a KV cache in int8 cost and save.

The model reads texts (this project's README and docs and, where the file is there, the questions
of MT-bench; `--texts` names others) in windows, through the engine's own packed forward pass, once
in every scheme: `int8_kv` is bfloat16 over a KV cache in 8 bits; with `--checkpoint` also another
model of the same tokenizer, in the codes that it is quantized in. Counted is every next token: how
probable it was (perplexity), whether the most probable one is that of float32, and how far the
distribution is from that of float32 (Kullback-Leibler divergence, in nats).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from rich.table import Table
from torch import Tensor

from app.prompt.tokenizer import load_tokenizer
from bench.common.stopwatch import replaced
from bench.common.traces import DEFAULT_QUESTIONS
from bench.registry import BenchError, Result
from engine.batch.batch import pack
from engine.config import Dtype, EngineConfig, KVDtype, Quantization
from engine.model.layers import packing
from engine.model.layers.paged_model import PagedModel
from engine.model.load import load_model
from engine.model.weights import DEFAULT_MODEL, resolve_model
from kernels.types import Experts, Linear

_SCHEMES: Final[dict[str, tuple[Dtype, Quantization, KVDtype]]] = {
    "float32": ("float32", "none", "auto"),
    "bfloat16": ("bfloat16", "none", "auto"),
    "int8_kv": ("bfloat16", "none", "int8"),
    "int8": ("auto", "int8", "auto"),
    "int4": ("auto", "int4", "auto"),
    "checkpoint": ("auto", "auto", "auto"),
}
"""The type of what is not quantized, how products are (those of a checkpoint as it has them), and
the type of the KV cache."""
_REFERENCE: Final = "float32"
_CHECKPOINT: Final = "checkpoint"
_MEANINGS: Final = {
    "perplexity": "of the texts",
    "top1_agreement": "share of positions whose most probable token is that of float32",
    "mean_kl": "mean divergence of the next token's distribution from that of float32, nats",
    "product_bytes": "memory of all matrix products: weights, scales and biases",
    "token_bytes": "memory of the KV cache for a token",
}
FIGURES: Final = {
    f"{figure}_{scheme}": f"{scheme}: {meaning}"
    for figure, meaning in _MEANINGS.items()
    for scheme in _SCHEMES
    if scheme != _REFERENCE or figure not in ("top1_agreement", "mean_kl")
}
_PROJECT: Final = Path(__file__).parents[2]
_BLOCK_SIZE: Final = 16


@dataclass(slots=True)
class _Sums:
    """What has been counted of one scheme."""

    surprise: float = 0.0
    agreeing: int = 0
    divergence: float = 0.0
    tokens: int = 0

    def add(self, logits: Tensor, reference: Tensor, next_ids: Tensor) -> None:
        """Count a window: logits [tokens, vocab_size], its own and those of float32."""
        own, other = logits.log_softmax(-1), reference.log_softmax(-1)
        self.surprise -= own.gather(1, next_ids[:, None]).sum().item()
        self.agreeing += int((own.argmax(-1) == other.argmax(-1)).sum())
        self.divergence += (other.exp() * (other - own)).sum().item()
        self.tokens += len(next_ids)

    def figures(self) -> dict[str, float]:
        mean_surprise = torch.tensor(self.surprise / self.tokens)
        return {
            "perplexity": mean_surprise.exp().item(),
            "top1_agreement": self.agreeing / self.tokens,
            "mean_kl": self.divergence / self.tokens,
        }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--model", default=DEFAULT_MODEL, help="what all are compared with")
    parser.add_argument("--checkpoint", help="the same model, quantized: a GGUF file or a folder")
    parser.add_argument("--texts", type=Path, nargs="+", help="files to read in place of the docs")
    parser.add_argument("--tokens", type=int, default=4096, help="of the texts, at most")
    parser.add_argument("--window", type=int, default=256, help="tokens that are read together")


def run(options: argparse.Namespace) -> Result:
    """Read the texts in every scheme."""
    folder = resolve_model(options.model)
    windows = _windows(_read(options.texts), folder, options.tokens, options.window)
    models, figures = {}, {}
    for scheme in _SCHEMES:
        if scheme != _CHECKPOINT or options.checkpoint is not None:
            loaded = resolve_model(options.checkpoint) if scheme == _CHECKPOINT else folder
            models[scheme], size = _load(scheme, loaded)
            models[scheme].allocate(-(-options.window // _BLOCK_SIZE))
            figures[f"product_bytes_{scheme}"] = float(size)
            block = models[scheme].layout.block_bytes(_BLOCK_SIZE, models[scheme].kv_storage)
            figures[f"token_bytes_{scheme}"] = block / _BLOCK_SIZE
    if len({model.weights.config.vocab_size for model in models.values()}) > 1:
        raise BenchError("--checkpoint: its vocabulary is not the model's")
    sums = {scheme: _Sums() for scheme in models}
    for window in windows:
        logits = {scheme: _logits(model, window) for scheme, model in models.items()}
        for scheme, counted in sums.items():
            counted.add(logits[scheme], logits[_REFERENCE], torch.tensor(window[1:]))
    for scheme, counted in sums.items():
        figures |= {f"{name}_{scheme}": value for name, value in counted.figures().items()}
    figures = {name: figures[name] for name in FIGURES if name in figures}
    reported = {
        "texts": options.texts or _default_texts(),
        "int8_activations": str(models["int8"].dtype).removeprefix("torch."),
        "counted_tokens": sums[_REFERENCE].tokens,
    }
    return Result(figures, [_table(figures, list(models))], reported)


def _load(scheme: str, folder: Path) -> tuple[PagedModel, int]:
    """A model and the bytes of its products."""
    dtype, quantize, kv_dtype = _SCHEMES[scheme]
    config = EngineConfig(
        model_path=str(folder),
        device="cpu",
        block_size=_BLOCK_SIZE,
        dtype=dtype,
        quantize=quantize,
        kv_dtype=kv_dtype,
    )
    with _product_sizes() as sizes:
        model = load_model(config)
    if not sizes:
        raise BenchError("the model's products are not the engine's: nothing to quantize")
    return model, sum(sizes)


@contextmanager
def _product_sizes() -> Iterator[list[int]]:
    """The bytes of every product that is packed meanwhile."""
    sizes = list[int]()
    with ExitStack() as stack:
        for name in ("pack", "pack_groups", "pack_experts"):
            counted = partial(_counted, vars(packing)[name], sizes)
            stack.enter_context(replaced(packing, name, counted))
        yield sizes


def _counted(
    pack: Callable[..., Linear | Experts], sizes: list[int], *arguments: Any, **options: Any
) -> Linear | Experts:
    product = pack(*arguments, **options)
    sizes.append(product.nbytes)
    return product


def _logits(model: PagedModel, window: list[int]) -> Tensor:
    """What follows each token but the last, in float32."""
    count = len(window) - 1
    blocks = range(-(-count // _BLOCK_SIZE))
    batch = pack([(window, 0, count, blocks)], range(count), _BLOCK_SIZE, model.device)
    return model.forward(batch).float()


def _default_texts() -> list[Path]:
    own = [_PROJECT / "README.md", *sorted((_PROJECT / "docs").glob("*.md"))]
    return [path for path in (*own, DEFAULT_QUESTIONS) if path.is_file()]


def _read(paths: list[Path] | None) -> list[str]:
    """Whole files; of a file of questions, their turns."""
    texts = []
    for path in paths or _default_texts():
        try:
            text = path.read_text()
            if path.suffix == ".jsonl":
                turns = [json.loads(line)["turns"] for line in text.splitlines()]
                text = "\n\n".join(turn for both in turns for turn in both)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BenchError(f"{path} cannot be read as text or questions: {error}") from error
        texts.append(text)
    return texts


def _windows(texts: list[str], folder: Path, most: int, length: int) -> list[list[int]]:
    """Token ids in windows, an equal share of them from each text."""
    tokenizer = load_tokenizer(folder)
    windows = []
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False)[: most // len(texts)]
        windows += [ids[start : start + length] for start in range(0, len(ids), length)]
    windows = [window for window in windows if len(window) > 1]
    if not windows:
        raise BenchError("--texts: no text to read")
    return windows


def _table(figures: dict[str, float], schemes: list[str]) -> Table:
    columns = ("perplexity", "top-1 as float32 %", "mean KL", "products MiB", "KV KiB/token")
    table = Table("scheme", *columns, title="accuracy")
    for scheme in schemes:
        table.add_row(
            scheme,
            f"{figures[f'perplexity_{scheme}']:.3f}",
            f"{100 * figures.get(f'top1_agreement_{scheme}', 1):.2f}",
            f"{figures.get(f'mean_kl_{scheme}', 0):.5f}",
            f"{figures[f'product_bytes_{scheme}'] / 2**20:.1f}",
            f"{figures[f'token_bytes_{scheme}'] / 2**10:.1f}",
        )
    return table
