"""Which room computes: compiled kernels that fit the device, or plain torch without any."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any, Literal

import torch

from kernels.native import library

Backend = Literal["triton", "native", "reference"]
"""The rooms, by the names of their folders."""


def default(device: torch.device) -> Backend:
    """What computes on `device` where nobody asks for something else."""
    if device.type == "cuda":
        return "triton"
    return "native" if device.type == "cpu" and library.available() else "reference"


def room(door: str, device: torch.device, backend: Backend | None = None) -> Any:
    """The functions behind a door in the room that is asked for, or else fits the device.

    They have the arguments of the door's own, without names. They are imported on first use: a
    machine with a GPU loads no compiled library, one without no Triton.
    """
    return _module(f"kernels.{backend or default(device)}.{door}")


_module = cache(import_module)
