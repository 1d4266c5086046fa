"""A model's pictures: what its tower makes of them, for the requests that show them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np

from engine.api import PictureHeader
from engine.batch.pictures import PictureRows, Seen
from engine.model.layers.paged_model import PagedModel
from engine.model.sight.slices import Slices
from engine.model.sight.tower import Tower

_read_header = msgspec.json.Decoder(PictureHeader).decode


class ModelPictures:
    """See `engine.pictures.sight.Sight`."""

    def __init__(self, model: PagedModel, tower: Tower) -> None:
        self._seen = model.seen
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
