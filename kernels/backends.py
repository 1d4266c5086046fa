"""Which room computes: compiled kernels that fit the device, or plain torch without any."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Literal

import torch

from kernels.native import library

Backend = Literal["triton", "native", "reference"]
"""The rooms, by the names of their folders."""


def default(device: torch.device) -> Backend:
    """What computes on `device` where nobody asks for something else."""
    if device.type == "cuda":
        return "triton"
    return "native" if device.type == "cpu" and library.available() else "reference"


@cache
def room(backend: Backend, door: str) -> ModuleType:
    """The functions of a door in that room.

    Imported on first use: a machine with a GPU loads no compiled library, one without no Triton.
    """
    return import_module(f"kernels.{backend}.{door}")
