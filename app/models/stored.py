"""The weights of a model's files, by their headers: how many, and what they become in memory."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import Any, Final

from app.models.gguf_header import GgufHeader
from engine.model.weights import GGUF_INDEX

_MOST_HEADER_BYTES = 100_000_000
"""As the format has it."""
GROUP_BITS: Final = {4: 5.0, 8: 9.0}
"""Of a weight in codes of so many bits, with its part of the scale and the minimum of 32."""
_ROUTER_BITS: Final = 32.0
_ROUTER: Final = re.compile(r".*\.(gate|router)(\.\w+)?\.weight")
_FOUR_BITS: Final = ("Q4_0", "Q4_1", "Q4_K", "MXFP4")
_PLAIN: Final = ("F32", "F16", "BF16")
"""GGUF's names of types."""
_FACTORS: Final = "rope_freqs.weight"
"""A tensor of a file that is no parameter."""
_IN_WORDS: Final = (".qweight", ".weight_packed")
_BESIDE: Final = (
    "scales",
    "qzeros",
    "g_idx",
    "_scale",
    "_scale_inv",
    "_zero_point",
    "weight_shape",
)
_METHODS: Final = ("gptq", "awq", "mxfp4", "fp8", "compressed-tensors")
"""What is known here of quantized checkpoints."""


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """A tensor of parameters."""

    name: str
    count: int
    bits: float | None = None
    """Of each in memory; `None`: as those that are loaded are quantized."""
    first: int = 0
    """Its first dimension, of three or more."""

    def is_of_experts(self, count: int | None) -> bool:
        """Whether so many experts of a layer, or one of them, have it."""
        return ".experts." in self.name or (count is not None and self.first == count)


def stored_tensors(folder: Path, quantization: Mapping[str, Any] | None) -> list[StoredWeight]:
    """Of a folder whose configuration says so of codes. Raises `OSError` or `ValueError` where that
    cannot be read, or codes are of a method that is not known here."""
    if (folder / GGUF_INDEX).exists():
        weights = json.loads((folder / GGUF_INDEX).read_bytes())
        return [
            _of_gguf(name, stored.get("kind", "F32"), stored["shape"])
            for name, stored in weights.items()
        ]
    method = None if quantization is None else quantization["quant_method"]
    if method is not None and method not in _METHODS:
        raise ValueError(f"codes of {method}")
    bits = 16 if quantization is None else _bits(quantization)
    found = [
        _of_folder(name, tensor, bits)
        for name, tensor in _headers(folder)
        if method is None or not name.endswith(_BESIDE)
    ]
    if not found:
        raise ValueError("no weights")
    return found


def stored_in_file(header: GgufHeader, keeps_codes: bool) -> list[StoredWeight]:
    """Of a GGUF file that is served in its codes, or widened. Raises `ValueError` for codes that
    are not known here."""
    from gguf import GGMLQuantizationType  # it takes a while, and few lists need it

    def kind(number: int) -> str:
        return GGMLQuantizationType(number).name if keeps_codes else "BF16"

    found = (one for one in header.tensors if one.name != _FACTORS)
    return [_of_gguf(one.name, kind(one.kind), one.shape) for one in found]


def _bits(quantization: Mapping[str, Any]) -> int:
    """Of all that is packed into words."""
    schemes = (quantization.get("config_groups") or {}).values()
    (bits,) = {scheme["weights"]["num_bits"] for scheme in schemes} or {quantization.get("bits", 4)}
    return index(bits)


def _headers(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(size, _MOST_HEADER_BYTES)))
        header.pop("__metadata__", None)
        yield from header.items()


def _of_folder(name: str, tensor: Mapping[str, Any], bits: int) -> StoredWeight:
    count = index(math.prod(tensor["shape"]))
    if name.endswith("_blocks"):  # two codes a byte
        return StoredWeight(name, 2 * count, GROUP_BITS[4])
    if name.endswith(_IN_WORDS):  # of 32 bits
        return StoredWeight(name, count * 32 // bits, GROUP_BITS[bits])
    if tensor["dtype"] == "I8":
        return StoredWeight(name, count, GROUP_BITS[8])
    return _plain(name, tensor["shape"])  # floats of 8 bits are widened


def _of_gguf(name: str, kind: str, shape: list[int]) -> StoredWeight:
    if kind in _PLAIN:
        return _plain(name, shape)
    return StoredWeight(name, math.prod(shape), GROUP_BITS[4 if kind in _FOUR_BITS else 8])


def _plain(name: str, shape: list[int]) -> StoredWeight:
    bits = _ROUTER_BITS if _ROUTER.fullmatch(name) else None
    return StoredWeight(name, index(math.prod(shape)), bits, shape[0] if len(shape) > 2 else 0)
