"""A model's adapters: read from PEFT's files, and used where the KV memory holds them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from engine.adapters.config import BadAdapter, read_config
from engine.adapters.files import ChangeHeader, TensorHeader, check_linears, read_tensors
from engine.adapters.memory import Image
from engine.model.adapters.images import AdapterImage, LinearChange, make_image
from engine.model.layers.linear_places import LinearPlace, shapes
from engine.model.layers.paged_model import PagedModel
from kernels.adapters import prepare

_DTYPES: Final = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class ModelAdapters:
    """See `engine.adapters.memory.AdapterMemory`."""

    def __init__(self, model: PagedModel) -> None:
        self._model = model
        self._places = model.linears
        self._linears = shapes(self._places)
        has_experts = any(place.num_experts for place in self._places.values())
        prepare(model.device, model.dtype, has_experts=has_experts)
        self._num_products = 1 + max(place.product for place in self._places.values())

    @torch.inference_mode()
    def prepare(self, config: bytes, weights: bytes) -> AdapterImage:
        """See `AdapterMemory`."""
        changes = self._changes(config, weights)
        try:
            return make_image(
                changes, self._num_products, self._model.dtype, self._model.page_bytes
            )
        except ValueError as error:
            raise BadAdapter("adapter_model.safetensors", str(error)) from None

    @torch.inference_mode()
    def use(self, name: bytes, image: Image, pages: Sequence[int]) -> None:
        """See `AdapterMemory`."""
        assert isinstance(image, AdapterImage), "it was prepared here"
        self._model.adapters[name] = image.within(self._model.rows, pages)

    def forget(self, name: bytes) -> None:
        """See `AdapterMemory`."""
        del self._model.adapters[name]

    def _changes(self, config: bytes, weights: bytes) -> dict[LinearPlace, LinearChange]:
        read = read_config(config)
        tensors = read_tensors(weights, read)
        check_linears(tensors, self._linears)
        data = memoryview(weights)[tensors.start :]
        if len(weights) != tensors.num_bytes:
            raise BadAdapter("adapter_model.safetensors", "is not as long as its header says")
        return {
            self._places[module]: _change(data, header, read.scale_of(module))
            for module, header in tensors.modules.items()
        }


def _change(data: memoryview, header: ChangeHeader, scale: float) -> LinearChange:
    down, up = _tensor(data, header.down), _tensor(data, header.up)
    if header.num_experts:  # whose ranks PEFT has together in one matrix, and apart in the other
        up = up.view(len(up), header.rank, header.num_experts).transpose(1, 2).flatten(1)
    return LinearChange(down, up, scale)


def _tensor(data: memoryview, header: TensorHeader) -> Tensor:
    own = np.frombuffer(data[header.start : header.end], np.uint8).copy()
    return torch.from_numpy(own).view(_DTYPES[header.dtype]).view(header.shape)
