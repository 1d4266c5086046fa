"""A model's pictures: what its tower makes of them, for the requests that show them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from engine.api import PictureHeader
from engine.batch.pictures import PictureRows, Seen
from engine.model.layers.paged_model import PagedModel
from engine.model.sight.slices import Slices
from engine.model.sight.tower import Tower

_read_header = msgspec.json.Decoder(PictureHeader).decode


@dataclass(frozen=True, slots=True)
class SeenLayout:
    """Of what was seen, tensor by tensor, as `Seen` has them."""

    shapes: Sequence[tuple[torch.dtype, torch.Size] | None]
    span: int

    @property
    def num_bytes(self) -> int:
        """Of all of them."""
        return sum(dtype.itemsize * shape.numel() for dtype, shape in filter(None, self.shapes))

    def seen(self, data: Tensor) -> Seen:
        """It, in `data`, [at least num_bytes] uint8."""
        tensors: list[Tensor | None] = []
        at = 0
        for one in self.shapes:
            if one is None:
                tensors.append(None)
                continue
            dtype, shape = one
            end = at + dtype.itemsize * shape.numel()
            tensors.append(data[at:end].view(dtype).view(shape))
            at = end
        turned, values, deep = tensors
        assert values is not None, "something was seen"
        return Seen(values, deep, None if turned is None else turned.cpu(), self.span)


class ModelPictures:
    """See `engine.pictures.sight.Sight`."""

    def __init__(self, model: PagedModel, tower: Tower) -> None:
        self._seen = model.seen
        self._model = model
        self._tower = tower
        self._slices: Slices[Seen] = Slices()
        tower.pausing(self._slices.pause)

    def begin(self, pieces: Sequence[bytes], token_ids: list[int]) -> None:
        """See `Sight`."""
        self._slices.begin(partial(self._see, pieces, token_ids))

    def advance(self, seconds: float) -> bool:
        """See `Sight`."""
        return self._slices.run(seconds)

    def keep(self, name: bytes) -> int:
        """See `Sight`."""
        seen = self._slices.take()
        self._seen[name] = seen
        return seen.num_bytes

    def forget(self, name: bytes) -> None:
        """See `Sight`."""
        del self._seen[name]

    def lay_out(self, name: bytes) -> SeenLayout:
        """See `Sight`."""
        seen = self._seen[name]
        shapes = [None if one is None else (one.dtype, one.shape) for one in seen.tensors]
        return SeenLayout(shapes, seen.span)

    def write(self, name: bytes, targets: Sequence[memoryview]) -> None:
        """See `Sight`."""
        tensors = (one for one in self._seen[name].tensors if one is not None)
        data = torch.cat([one.reshape(-1).view(torch.uint8) for one in tensors]).cpu().numpy()
        at = 0
        for target in targets:
            part = data[at : at + len(target)]
            target[: len(part)] = part.data
            at += len(part)

    def read(self, name: bytes, layout: SeenLayout, pages: Sequence[int]) -> int:
        """See `Sight`."""
        rows = self._model.rows
        index = torch.tensor(pages, device=rows.device)
        seen = layout.seen(rows.index_select(0, index).flatten())
        self._seen[name] = seen
        return seen.num_bytes

    def _see(self, pieces: Sequence[bytes], token_ids: list[int]) -> Seen:
        return self._tower.see(read_inputs(pieces), token_ids)


def picture_rows(model: PagedModel) -> PictureRows | None:
    """What finds the rows of pictures in its batches; `None` for a model that sees nothing."""
    tower = model.weights.tower
    if tower is None:
        return None
    places = model.weights.decoder.num_places
    return PictureRows(tower.token_id, model.seen, places, tower.mutual)


def read_inputs(pieces: Sequence[bytes]) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of a picture, as it is brought. Raises `ValueError` for what is none."""
    header, data, at = _read_header(pieces[0]), bytearray().join(pieces[1:]), 0
    inputs = {}
    for one in header.inputs:
        dtype = np.dtype(one.dtype)
        size = int(np.prod(one.shape)) * dtype.itemsize
        inputs[one.name] = np.frombuffer(data, dtype, size // dtype.itemsize, at).reshape(one.shape)
        at += size
    if at != len(data):
        raise ValueError("a picture has other bytes than its header says")
    return inputs
