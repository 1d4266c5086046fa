"""A model's adapters: read from PEFT's files, and used where the KV memory holds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from engine.adapters.config import BadAdapter, read_config
from engine.adapters.files import ChangeHeader, TensorHeader, check_linears, read_tensors
from engine.adapters.memory import Image
from engine.model.adapters.images import AdapterImage, LinearChange, make_image
from engine.model.layers.linear_places import shapes
from engine.model.layers.paged_model import PagedModel
from kernels.adapters import prepare
from kernels.layers import ADAPTED

_DTYPES: Final = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True, slots=True, eq=False)
class RankedImage:
    """See `engine.adapters.memory.Image`: each rank has a part, in as many pages as the largest."""

    parts: Sequence[AdapterImage]

    @property
    def num_pages(self) -> int:
        """See `Image`."""
        return max(len(part.pages) for part in self.parts)

    @property
    def page_bytes(self) -> int:
        """See `Image`: of the first rank's."""
        return self.parts[0].pages.shape[1]

    @property
    def num_bytes(self) -> int:
        """See `Image`."""
        return sum(part.pages.nbytes for part in self.parts)

    def fill(self, number: int, target: memoryview) -> None:
        """See `Image`."""
        own = self.parts[0].pages
        if number < len(own):
            target[:] = own[number].numpy().data


class ModelAdapters:
    """See `engine.adapters.memory.AdapterMemory`."""

    def __init__(self, model: PagedModel) -> None:
        self._model = model
        self._ranks = model.adaptable
        self._linears = shapes(model.linears)
        has_experts = any(place.num_experts for place in model.linears.values())
        prepare(model.device, model.dtype, has_experts=has_experts)
        # Of whole layers: whatever is computed of the last one has a number, changed or not.
        last = max(place.product for place in model.linears.values())
        self._num_products = (last // len(ADAPTED) + 1) * len(ADAPTED)

    @torch.inference_mode()
    def prepare(self, config: bytes, weights: bytes) -> RankedImage:
        """See `AdapterMemory`."""
        changes, dtype = self._changes(config, weights), self._model.dtype
        try:
            return RankedImage(
                [
                    make_image(
                        {places[module]: change for module, change in changes.items()},
                        self._num_products,
                        dtype,
                        page_bytes,
                    )
                    for places, page_bytes in self._ranks
                ]
            )
        except ValueError as error:
            raise BadAdapter("adapter_model.safetensors", str(error)) from None

    def filling(self, image: Image, places: Sequence[tuple[int, int]]) -> Callable[[], None]:
        """See `AdapterMemory`."""
        assert isinstance(image, RankedImage), "it was prepared here"
        others = [
            [(page, part.pages[number]) for number, page in places if number < len(part.pages)]
            for part in image.parts[1:]
        ]
        return self._model.filling(others)

    @torch.inference_mode()
    def use(self, name: bytes, image: Image, pages: Sequence[int]) -> None:
        """See `AdapterMemory`."""
        assert isinstance(image, RankedImage), "it was prepared here"
        self._model.use_adapter(name, [part.layout for part in image.parts], tuple(pages))

    def forget(self, name: bytes) -> None:
        """See `AdapterMemory`."""
        self._model.forget_adapter(name)

    def _changes(self, config: bytes, weights: bytes) -> dict[str, LinearChange]:
        read = read_config(config)
        tensors = read_tensors(weights, read)
        check_linears(tensors, self._linears)
        data = memoryview(weights)[tensors.start :]
        if len(weights) != tensors.num_bytes:
            raise BadAdapter("adapter_model.safetensors", "is not as long as its header says")
        return {
            module: _change(data, header, read.scale_of(module))
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
