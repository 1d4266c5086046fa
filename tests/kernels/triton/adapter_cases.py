"""Runs the Triton kernels of adapters over drawn mixes of them, and fails where they are off.

`python -m tests.kernels.triton.adapter_cases cpu` runs them in Triton's interpreter, with `cuda`
they are compiled: see `tests.kernels.triton.cases`. Prints one JSON object: the number of mixes,
and answers to questions.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.reference import adapters as reference
from kernels.types import AdaptedRows, Adapter, LowRank
from tests.kernels.triton.interpreter import interpret

TOLERANCES = {torch.float32: 1e-4, torch.float16: 2e-2}
PAGE_BYTES = 1 << 18


@dataclass(frozen=True)
class Part:
    rank: int
    column: int
    width: int
    scale: float


@dataclass(frozen=True)
class Mix:
    """Adapters of a product, and whose each row is: -1 nobody's."""

    inputs: int
    outputs: int
    adapters: tuple[tuple[Part, ...], ...]
    owners: tuple[int, ...]
    dtype: torch.dtype
    is_strided: bool


@st.composite
def parts(draw: st.DrawFn, outputs: int) -> Part:
    rank = draw(st.one_of(st.integers(1, 70), st.sampled_from((8, 16, 32, 128, 256))))
    column = draw(st.integers(0, outputs - 1))
    width = draw(st.integers(1, outputs - column))
    return Part(rank, column, width, draw(st.sampled_from((0.5, 2.0, -1.0))))


@st.composite
def mixes(draw: st.DrawFn) -> Mix:
    inputs = draw(st.one_of(st.integers(1, 150), st.just(1100)))
    outputs = draw(st.integers(1, 150))
    of_one = st.lists(parts(outputs), max_size=3).map(tuple)
    adapters = tuple(draw(st.lists(of_one, min_size=1, max_size=4)))
    owners = draw(st.lists(st.integers(-1, len(adapters) - 1), min_size=1, max_size=75))
    dtype = draw(st.sampled_from(list(TOLERANCES)))
    return Mix(inputs, outputs, adapters, tuple(owners), dtype, draw(st.booleans()))


def placed(mix: Mix, device: torch.device) -> list[AdaptedRows]:
    """The adapters in pages of one memory, cut as `engine.model.adapters.images` has them."""
    from engine.model.adapters.images import LinearChange, make_image
    from engine.model.layers.linear_places import LinearPlace

    found, owners = [], torch.tensor(mix.owners)
    for number, own in enumerate(mix.adapters):
        rows = (owners == number).nonzero().squeeze(1)
        changes = {
            LinearPlace(1, mix.inputs, part.width, part.column): LinearChange(
                torch.randn(part.rank, mix.inputs) / mix.inputs**0.5,
                torch.randn(part.width, part.rank) / part.rank**0.5,
                part.scale,
            )
            for part in own
        }
        # A product before, which this one is not to be taken for, and one that none changes.
        other = LinearChange(torch.full((1, 3), torch.inf), torch.ones(3, 1), 1.0)
        changes = {LinearPlace(0, 3, 3): other} | changes
        image = make_image(changes, 3, mix.dtype, PAGE_BYTES)
        order = torch.randperm(image.num_pages).tolist()
        memory = torch.empty_like(image.pages)
        memory[order] = image.pages
        found.append(AdaptedRows(image.within(memory.to(device), order), rows))
    return found


def check(mix: Mix, device: torch.device) -> None:
    """What the reference gives, and each row's bits those that it has alone."""
    from kernels.triton import adapters as ours

    extra = 16 if mix.is_strided else 0
    x = torch.randn(len(mix.owners), mix.inputs + extra).to(mix.dtype)[:, : mix.inputs]
    output = torch.randn(len(mix.owners), mix.outputs + extra).to(mix.dtype)[:, : mix.outputs]
    adapted = placed(mix, device)
    wide = [
        AdaptedRows(Adapter(tuple(tuple(map(widened, one)) for one in adapter.changes)), rows)
        for adapter, rows in adapted
    ]
    expected = output.double()
    reference.adapt(x.double(), expected, wide, 1)
    whole = output.to(device)
    ours.adapt(x.to(device), whole, ours.placed(adapted, device), 1)
    found = whole.cpu()
    tolerance = TOLERANCES[mix.dtype]
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)
    nobodys = torch.tensor(mix.owners) < 0
    assert torch.equal(found[nobodys], output[nobodys])
    for adapter, rows in adapted:
        for row in rows[[0, -1]] if len(rows) else ():
            alone = output.to(device)
            ours.adapt(x.to(device), alone, [AdaptedRows(adapter, row[None])], 1)
            assert torch.equal(alone[row].cpu(), found[row])
    unchanged = output.to(device)
    ours.adapt(x.to(device), unchanged, ours.placed(adapted, device), 2)
    assert torch.equal(unchanged.cpu(), output)


def widened(part: LowRank) -> LowRank:
    return LowRank(part.down.cpu().double(), part.up.cpu().double(), part.column, part.scale)


class _Watch(TorchDispatchMode):
    """Lists what torch does."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        self.seen.append(func.overloadpacket.__name__)
        return func(*args, **kwargs or {})


def nothing_is_waited_for(device: torch.device) -> bool:
    """Whether the host can go on without an answer: torch makes room for what is taken, once a
    step's rows are there, and no more. On a GPU torch itself raises where it waits.
    """
    from kernels.triton import adapters as ours

    mix = Mix(40, 70, ((Part(8, 0, 70, 1.0),),), (0, -1, 0), torch.float32, is_strided=False)
    x, output = torch.randn(3, 40, device=device), torch.randn(3, 70, device=device)
    adapted = placed(mix, device)
    ours.adapt(x, output, ours.placed(adapted, device), 1)  # whatever is compiled on first use
    if device.type == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    rows = ours.placed(adapted, device)
    with _Watch() as watch:
        ours.adapt(x, output, rows, 1)
    if device.type == "cuda":
        torch.cuda.set_sync_debug_mode("default")
    interpreter = {"copy_", "set_"}  # which moves what it is given to the host
    return set(watch.seen) - interpreter == {"empty", "new_empty"}


def main(device: torch.device) -> None:
    seen: list[Mix] = []

    @settings(
        max_examples=24,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(mixes())
    def every(mix: Mix) -> None:
        torch.manual_seed(0)
        check(mix, device)
        seen.append(mix)

    every()
    print(json.dumps({"mixes": len(seen), "waits": not nothing_is_waited_for(device)}))


if __name__ == "__main__":
    where = torch.device(sys.argv[1])
    if where.type == "cpu":
        interpret()
    torch.set_num_threads(1)
    # Fills what `torch.empty` returns with NaN; on a GPU there is not always a deterministic way.
    torch.use_deterministic_algorithms(True, warn_only=True)
    main(where)
