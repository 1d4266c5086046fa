"""Runs the Triton kernels of recurrent layers and prints how far they are off, case by case.

`python -m tests.kernels.triton.recurrent_cases cpu` runs them in Triton's interpreter, with `cuda`
they are compiled: see `tests.kernels.triton.cases`. Prints one JSON object: by case the largest
difference from the reference, in results and in memory.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from kernels import recurrent
from tests.kernels.recurrent_cases import (
    Paged,
    Shape,
    Steps,
    convolution_inputs,
    delta_inputs,
    paged,
    scan_inputs,
)

STEPS = (
    Steps("decode", ((1,), (1,), (1,)), frozenset((1,)), frozenset((0,))),
    Steps("prompts", ((21,), (2, 0, 1)), fresh=frozenset((0,))),
    Steps("runs of a sequence", ((3, 1, 2), (1, 2)), frozenset((1,)), frozenset((0,))),
)
SHAPES = (Shape(4, 2, 8, 16), Shape(3, 1, 5, 7))
CHANNELS = 150
_Door = Callable[..., Tensor]


def errors(device: torch.device) -> Iterator[tuple[str, float]]:
    """Of all cases."""
    for steps in STEPS:
        for width, activation in ((4, "silu"), (3, None)):
            x, weight, bias = convolution_inputs(steps, CHANNELS, width, torch.float32)
            case = paged((CHANNELS, width), torch.float32, steps, per_page=70)
            given = [x, weight, bias if activation else None, activation]
            name = f"convolution over {width}, {steps.name}"
            yield name, error(recurrent.convolve, given, case, device)
        for shape in SHAPES:
            state = (shape.heads, shape.state_dim, shape.head_dim)
            for kind, by_key in (("gdn", False), ("kda", True)):
                given = delta_inputs(steps, shape, torch.float32, by_key)
                case = paged(state, torch.float32, steps)
                name = f"{kind} of {shape.heads} heads, {steps.name}"
                yield name, error(recurrent.gated_delta, given, case, device)
            *some, d = scan_inputs(steps, shape, torch.float32)
            given = [*some, d if shape.heads == 4 else None]
            case = paged((shape.heads, shape.head_dim, shape.state_dim), torch.float32, steps)
            name = f"scan of {shape.heads} heads, {steps.name}"
            yield name, error(recurrent.selective_scan, given, case, device)


def error(door: _Door, given: list[object], case: Paged, device: torch.device) -> float:
    """The largest difference from the reference, in all of the memory, too."""
    expected, theirs = _run(door, given, case, torch.device("cpu"), "reference")
    actual, ours = _run(door, given, case, device, "triton")
    untouched = ~case.written
    assert torch.equal(ours[untouched], case.memory[untouched])
    states = [memory.view(case.place.dtype).double() for memory in (ours, theirs)]
    pairs = ((actual.double(), expected.double()), states)
    return max(float((left - right).abs().max()) for left, right in pairs)


def _run(
    door: _Door, given: list[object], case: Paged, device: torch.device, backend: str
) -> tuple[Tensor, Tensor]:
    memory = case.memory.clone().to(device)
    runs = replace(
        case.runs,
        starts=case.runs.starts.to(device),
        sources=case.runs.sources.to(device),
        targets=case.runs.targets.to(device),
    )
    moved = [part.to(device) if isinstance(part, Tensor) else part for part in given]
    found = door(*moved, runs, memory, case.place, backend=backend)
    return found.cpu(), memory.cpu()


if __name__ == "__main__":
    where = torch.device(sys.argv[1])
    if where.type == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(json.dumps(dict(errors(where))))
