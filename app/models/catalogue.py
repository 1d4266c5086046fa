"""Models that are stronger than the default one, may be used freely, and are served as they are."""

from __future__ import annotations

from dataclasses import dataclass

from app.models.sizes import WEIGHT_BITS, ModelShape, needed_bytes


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model on the Hugging Face hub."""

    name: str
    license: str
    shape: ModelShape


def _known(
    name: str, license: str, millions: int, vocab: int, hidden: int, tied: bool, kv: int
) -> KnownModel:
    return KnownModel(name, license, ModelShape(millions * 10**6, vocab * hidden, tied, 2 * kv))


# Parameters in millions, vocabulary, hidden size, whether the head is tied, and layers times KV
# heads times their dimensions: from the configurations on the hub.
KNOWN = (
    _known("HuggingFaceTB/SmolLM2-360M-Instruct", "Apache 2.0", 362, 49152, 960, True, 32 * 5 * 64),
    _known("Qwen/Qwen3-0.6B", "Apache 2.0", 596, 151936, 1024, True, 28 * 8 * 128),
    _known("Qwen/Qwen3-1.7B", "Apache 2.0", 1721, 151936, 2048, True, 28 * 8 * 128),
    _known("Qwen/Qwen3-4B-Instruct-2507", "Apache 2.0", 4022, 151936, 2560, True, 36 * 8 * 128),
    _known("Qwen/Qwen3-8B", "Apache 2.0", 8191, 151936, 4096, False, 36 * 8 * 128),
    _known("Qwen/Qwen3-14B", "Apache 2.0", 14768, 151936, 5120, False, 40 * 8 * 128),
    _known("Qwen/Qwen3-32B", "Apache 2.0", 32762, 151936, 5120, False, 64 * 8 * 128),
)
"""Ascending by size."""


def best_kind(shape: ModelShape, available: int) -> str | None:
    """The widest weights with which a service of that model fits into so many bytes."""
    for kind in WEIGHT_BITS:
        if needed_bytes(shape.weight_bytes(kind), shape.kv_token_bytes) <= available:
            return kind
    return None


def fitting(available: int) -> list[tuple[KnownModel, str]]:
    """The known models that fit into so many bytes, and how; ascending by size."""
    found = [(model, best_kind(model.shape, available)) for model in KNOWN]
    return [(model, kind) for model, kind in found if kind is not None]
