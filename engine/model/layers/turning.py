"""Rows to spare in rotary tables: for tokens that are turned by places of three parts.

What stands for a picture is turned by where it lies in time, height and width, each frequency of a
head by one of these (M-RoPE: Wang et al., Qwen2-VL, 2024). All others are turned by one place, so
that kernels look up a row. For a step's tokens of pictures that row is written before it is needed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from engine.model.layers.description import Description
from kernels.types import Rotation

SPARE_ROWS: Final = 8192
"""No step has more tokens."""


def with_spare_rows(description: Description) -> Description:
    """The same, with rows behind those of its tables, which layers share as before."""
    known: dict[int, Rotation] = {}

    def longer(rotation: Rotation) -> Rotation:
        if id(rotation) not in known:
            known[id(rotation)] = Rotation(_longer(rotation.cos), _longer(rotation.sin))
        return known[id(rotation)]

    layers = [
        replace(one, options=replace(one.options, rotation=longer(one.options.rotation)))
        for one in description.layers
    ]
    return replace(description, layers=layers)


def tables_of(description: Description) -> list[Tensor]:
    """Its rotary tables, each once."""
    rotations = {id(one.options.rotation): one.options.rotation for one in description.layers}
    return [table for one in rotations.values() for table in (one.cos, one.sin)]


def turn(tables: list[Tensor], first: int, turned: Tensor, axes: Tensor) -> None:
    """Write rows from `first` on: of tokens that are `turned`, [3, num_tokens], to these places, of
    which each frequency goes by one of the `axes`, [head_dim / 2].
    """
    places = turned[axes].T
    for table in tables:
        table[first : first + len(places)] = table.gather(0, places)


def _longer(table: Tensor) -> Tensor:
    return torch.cat([table, table.new_zeros(SPARE_ROWS, table.shape[1])])
