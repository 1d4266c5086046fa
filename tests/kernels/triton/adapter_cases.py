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
from kernels.reference import experts as expert_reference
from kernels.types import AdaptedRows
from tests.kernels.adapted_experts import (
    BACK,
    INTO,
    Experts,
    Ranks,
    adapted_experts,
    routed,
    widened,
)
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
        order = torch.randperm(len(image.pages)).tolist()
        memory = torch.empty_like(image.pages)
        memory[order] = image.pages
        found.append(AdaptedRows(image.layout.within(memory.to(device), order), rows))
    return found


def check(mix: Mix, device: torch.device) -> None:
    """What the reference gives, and each row's bits those that it has alone."""
    from kernels.triton import adapters as ours

    extra = 16 if mix.is_strided else 0
    x = torch.randn(len(mix.owners), mix.inputs + extra).to(mix.dtype)[:, : mix.inputs]
    output = torch.randn(len(mix.owners), mix.outputs + extra).to(mix.dtype)[:, : mix.outputs]
    adapted = placed(mix, device)
    expected = output.double()
    reference.adapt(x.double(), expected, widened(adapted), 1)
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


@dataclass(frozen=True)
class ExpertCase:
    """Tokens, some of which have adapters that change experts."""

    num_tokens: int
    experts: Experts
    per_token: int
    dtype: torch.dtype
    ranks: tuple[Ranks, ...] = (Ranks(3, 5), Ranks(16, 0), Ranks(0, 40), Ranks(2, 2))


EXPERT_CASES = (
    ExpertCase(9, Experts(6, 40, 24), 2, torch.float32),
    ExpertCase(9, Experts(6, 40, 24), 2, torch.float16),
    ExpertCase(90, Experts(2, 16, 8), 1, torch.float32),
    ExpertCase(1, Experts(21, 33, 7), 4, torch.float32, (Ranks(1, 1),)),
    ExpertCase(5, Experts(3, 16, 8), 3, torch.float16, (Ranks(0, 0),)),
)


def expert_error(case: ExpertCase, device: torch.device) -> float:
    """The largest difference; and each token's bits are those that it has alone."""
    from kernels.triton import adapters as ours
    from kernels.triton.experts import pack_experts

    experts, dtype = case.experts, case.dtype
    owners = [(0, -1, 1, 2)[token % 4] for token in range(case.num_tokens)]
    owners = [one if one < len(case.ranks) else -1 for one in owners]
    adapted = adapted_experts(experts, case.ranks, owners, dtype, device, 1 << 12)
    hidden, inter = experts.hidden_size, experts.inter
    gate_up = torch.randn(experts.count, 2 * inter, hidden).to(dtype) / hidden**0.5
    down = torch.randn(experts.count, hidden, inter).to(dtype) / inter**0.5
    x = torch.randn(case.num_tokens, hidden).to(dtype)
    chosen, shares = routed(case.num_tokens, experts, case.per_token)
    wide = (list(part.double()) for part in (gate_up, down))
    theirs = expert_reference.pack_experts(*wide, "silu", None, None, "none", False)
    expected = theirs(x.double(), chosen, shares, widened(adapted), (INTO, BACK))
    mine = [list(part.to(device)) for part in (gate_up, down)]
    kernels = pack_experts(*mine, "silu", None, None, "none", True)
    rows = ours.placed(adapted, device)
    given = [part.to(device) for part in (x, chosen, shares)]
    found = kernels(*given, rows, (INTO, BACK)).cpu()
    for token in (0, case.num_tokens - 1):
        alone = [
            AdaptedRows(adapter, torch.tensor([0]))
            for number, (adapter, _) in enumerate(adapted)
            if number == owners[token]
        ]
        one = [part[token : token + 1] for part in given]
        assert torch.equal(kernels(*one, alone, (INTO, BACK)).cpu()[0], found[token])
    plain = kernels(*given).cpu()
    changed = [owner >= 0 and any(case.ranks[owner]) for owner in owners]
    assert changed == [not torch.equal(*pair) for pair in zip(plain, found, strict=True)]
    return float((found.double() - expected).abs().max() / expected.abs().max())


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


def launches_of_a_start(device: torch.device) -> int:
    """How often kernels are launched where all that steps need is compiled beforehand."""
    from kernels.triton import adapters as ours
    from kernels.triton.adapters import products

    launched: list[object] = []
    kernels = (products.take_ranks, products.give_columns)
    for kernel in kernels:
        kernel.add_pre_run_hook(lambda *_, **__: launched.append(1))
    for has_experts in (False, True):
        ours.prepare(device, torch.float32, has_experts)
    for kernel in kernels:
        kernel.pre_run_hooks.clear()
    return len(launched)


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
    torch.manual_seed(0)
    most = {torch.float32: 1e-5, torch.float16: 1e-2}
    errors = [(case, expert_error(case, device)) for case in EXPERT_CASES]
    wrong = {str(case): error for case, error in errors if not error < most[case.dtype]}
    waits = not nothing_is_waited_for(device)
    told = {"mixes": len(seen), "wrong_experts": wrong, "waits": waits}
    print(json.dumps(told | {"launches_of_a_start": launches_of_a_start(device)}))


if __name__ == "__main__":
    where = torch.device(sys.argv[1])
    if where.type == "cpu":
        interpret()
    torch.set_num_threads(1)
    # Fills what `torch.empty` returns with NaN; on a GPU there is not always a deterministic way.
    torch.use_deterministic_algorithms(True, warn_only=True)
    main(where)
