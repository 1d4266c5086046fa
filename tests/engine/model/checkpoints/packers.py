"""Tiny models in the formats of GPTQ, AWQ and compressed-tensors, packed as their projects say.

Word by word, in plain loops of numpy, so that nothing is shared with the code that reads them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

Codes = NDArray[np.int64]


@dataclass(frozen=True)
class Quantized:
    """A matrix [out, in] as scale * (code - zero), a scale and a zero for each group of inputs."""

    codes: Codes  # [out, in]
    zeros: Codes  # [out, groups]
    scales: Tensor  # [out, groups]
    group_size: int

    def weight(self) -> Tensor:
        """What it stands for, float32."""
        spread = [group // self.group_size for group in range(self.codes.shape[1])]
        steps = torch.from_numpy(self.codes - self.zeros[:, spread]).float()
        return steps * self.scales[:, spread].float()


def quantize(weight: Tensor, bits: int, group_size: int, symmetric: bool, scale: Any) -> Quantized:
    """Round to nearest; `scale` is the type of scales, `group_size` -1 for whole rows."""
    size = weight.shape[1] if group_size == -1 else group_size
    groups = weight.float().view(len(weight), -1, size)
    largest = 2**bits - 1
    if symmetric:
        scales = (groups.abs().amax(2) / (largest // 2)).to(scale)
        zeros = torch.full(scales.shape, 2 ** (bits - 1))
    else:
        low, high = groups.amin(2).clamp_max(0), groups.amax(2).clamp_min(0)
        scales = ((high - low) / largest).to(scale)
        # A zero point of 0 is more than some of the formats can hold.
        zeros = (-low / scales.float()).round().clamp(1, largest).long()
    codes = (groups / scales.float()[..., None]).round().long() + zeros[..., None]
    codes = codes.clamp(0, largest).flatten(1)
    return Quantized(codes.numpy(), zeros.numpy(), scales, size)


def words(numbers: Codes, bits: int, places: list[int] | None = None) -> Tensor:
    """int32 [rows, words]: number `places[i]` of a word in its i-th bits from below."""
    per_word = 32 // bits
    rows, columns = numbers.shape
    packed = np.zeros((rows, -(-columns // per_word)), dtype=np.uint32)
    for word in range(packed.shape[1]):
        for i in range(per_word):
            column = word * per_word + (places[i] if places else i)
            if column < columns:
                packed[:, word] |= numbers[:, column].astype(np.uint32) << np.uint32(bits * i)
    return torch.from_numpy(packed.view(np.int32))


def pack_gptq(one: Quantized, bits: int, offset: int = 1) -> dict[str, Tensor]:
    """AutoGPTQ: codes along the inputs, zero points less `offset`, all transposed."""
    size = one.group_size
    return {
        "qweight": words(one.codes, bits).T,
        "qzeros": words(one.zeros.T - offset, bits),
        "scales": one.scales.T,
        "g_idx": torch.tensor([i // size for i in range(one.codes.shape[1])], dtype=torch.int32),
    }


def pack_awq(one: Quantized, bits: int) -> dict[str, Tensor]:
    """AutoAWQ, GEMM: codes along the outputs, of which a word has 0, 2, 4, 6, 1, 3, 5, 7."""
    places = [0, 2, 4, 6, 1, 3, 5, 7]
    return {
        "qweight": words(one.codes.T, bits, places),
        "qzeros": words(one.zeros.T, bits, places),
        "scales": one.scales.T,
    }


def pack_compressed(one: Quantized, bits: int, with_zeros: bool = False) -> dict[str, Tensor]:
    """compressed-tensors, pack-quantized: numbers moved up by half of their range."""
    zeros = {"weight_zero_point": words(one.zeros.T, bits).T}
    return {
        "weight_packed": words(one.codes, bits),
        "weight_scale": one.scales,
        "weight_shape": torch.tensor(one.codes.shape),
    } | (zeros if with_zeros else {})


def pack_bytes(one: Quantized, bits: int) -> dict[str, Tensor]:
    """compressed-tensors, int-quantized: whole bytes with a sign."""
    return {
        "weight": torch.from_numpy((one.codes - 128).astype(np.int8)),
        "weight_scale": one.scales,
    }


def rewrite(
    folder: Path,
    config: dict[str, Any],
    rounded: Callable[[Tensor], Quantized],
    packed: Callable[[Quantized], dict[str, Tensor]],
) -> dict[str, Tensor]:
    """Quantize a saved model's projections in place; returns its weights as they are now."""
    path = folder / "model.safetensors"
    plain = load_file(path)
    stored, stands_for = {}, {}
    for name, tensor in plain.items():
        stored[name] = stands_for[name] = tensor
        if name.endswith("_proj.weight"):
            del stored[name]
            one = rounded(tensor)
            stands_for[name] = one.weight()
            module = name.removesuffix(".weight")
            stored |= {f"{module}.{part}": value for part, value in packed(one).items()}
    save_file({name: tensor.contiguous() for name, tensor in stored.items()}, path)
    write_options(folder, config)
    return stands_for


def write_options(folder: Path, options: dict[str, Any]) -> None:
    """Put a `quantization_config` into a saved model's configuration."""
    path = folder / "config.json"
    read = json.loads(path.read_text())
    path.write_text(json.dumps(read | {"quantization_config": options}))
