"""Runs the Triton kernels of experts and prints how far they are off, case by case.

`python -m tests.kernels.triton.expert_cases cpu` runs them in Triton's interpreter, with `cuda`
they are compiled: see `tests.kernels.triton.cases`. Prints one JSON object: errors of routings and
of experts by their names, and answers to questions.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.reference import experts as reference
from kernels.types import Activation, Experts, Routing
from tests.kernels.triton.interpreter import interpret

NUM_TOKENS = 9
ROUTINGS = {
    "softmax": Routing(6, 2, "softmax"),
    "softmax, not normalised, scaled": Routing(6, 3, "softmax", is_normalised=False, scale=2.5),
    "softmax of one expert": Routing(1, 1, "softmax"),
    "all experts": Routing(5, 5, "softmax"),
    "sigmoid": Routing(128, 8, "sigmoid", least_sum=1e-20, scale=2.5),
    "sigmoid, corrected": Routing(20, 4, "sigmoid", torch.randn(20)),
    "sums of at least": Routing(6, 2, "sigmoid", least_sum=1.9),
    "groups": Routing(32, 4, "sigmoid", torch.randn(32), num_groups=8, kept_groups=3),
    "groups of odd sizes": Routing(21, 4, "softmax", num_groups=3, kept_groups=2),
    "groups that are too few": Routing(6, 4, "sigmoid", num_groups=3, kept_groups=1),
    "softmax of those near": Routing(16, 2, "softmax_near_best", is_normalised=False, margin=0.02),
    "softmax of those far": Routing(6, 3, "softmax_near_best", is_normalised=False, margin=1.5),
}


@dataclass(frozen=True)
class Case:
    """Experts, and the tokens that go through them."""

    name: str
    num_tokens: int
    num_experts: int = 6
    per_token: int = 2
    hidden_size: int = 40
    inter: int = 24
    dtype: str = "float32"
    activation: Activation = "silu"
    has_biases: bool = False
    only: tuple[int, ...] = ()
    """Experts that are chosen; the others' weights are not numbers. Without any, all may be."""
    batch_invariant: bool = False


CASES = (
    Case("few rows", 5),
    Case("few rows, fp16", 5, dtype="float16"),
    Case("some rows", 40, 4, dtype="float16"),
    Case("many rows, several blocks an expert", 300, 4, dtype="float16"),
    Case("many rows", 80, 4),
    Case("gelu_tanh", 3, activation="gelu_tanh"),
    Case("relu2", 3, activation="relu2"),
    Case("clamped_swiglu, biases", 7, activation="clamped_swiglu", has_biases=True),
    Case("biases, fp16", 40, 3, dtype="float16", has_biases=True),
    Case("several tiles", 3, 4, 3, 200, 150, has_biases=True),
    Case("several tiles, fp16", 3, 4, 3, 200, 150, dtype="float16"),
    Case("more experts than rows", 2, 21),
    Case("one token", 1),
    Case("one token, one expert", 1, per_token=1),
    Case("no token", 0),
    Case("all tokens to one", 50, per_token=1, only=(3,)),
    Case("all tokens to the last", 20, per_token=1, only=(5,)),
    Case("nobody chose most", 9, only=(1, 4)),
    Case("batch-invariant", 20, 3, batch_invariant=True),
    Case("batch-invariant, fp16", 70, 4, dtype="float16", has_biases=True, batch_invariant=True),
)


def routed(logits: Tensor, routing: Routing, device: torch.device) -> tuple[Tensor, Tensor]:
    """What the kernel gives, on a CPU."""
    from kernels.triton.experts import route

    if routing.correction is not None:
        routing = replace(routing, correction=routing.correction.to(device))
    chosen, shares = route(logits.to(device), routing)
    assert (chosen.dtype, shares.dtype) == (torch.int32, torch.float32)
    return chosen.cpu(), shares.cpu()


def routing_error(routing: Routing, device: torch.device) -> float:
    """The largest difference of shares; infinite where other experts were chosen."""
    logits = torch.randn(NUM_TOKENS, routing.num_experts) * 3
    logits[0] = 1.0  # all tie
    logits[1, 1::2] = logits[1, 0].item()
    if routing.scores == "softmax_near_best":
        logits[2] = 5 + logits[2] / 100
    chosen, shares = routed(logits, routing, device)
    expected, theirs = reference.route(logits, routing)
    return (shares - theirs).abs().max().item() if torch.equal(chosen, expected) else torch.inf


def rows_apart(device: torch.device) -> bool:
    """Whether results of a router may lie in a wider tensor."""
    logits, routing = torch.randn(4, 12), ROUTINGS["softmax"]
    apart, whole = logits[:, 3:9], logits[:, 3:9].contiguous()
    return torch.equal(routed(apart, routing, device)[0], routed(whole, routing, device)[0])


def no_numbers(device: torch.device) -> bool:
    """Whether experts are chosen that there are, of scores that are no numbers."""
    logits = torch.full((2, 6), torch.nan)
    return all(
        bool(((chosen >= 0) & (chosen < 6)).all())
        for scores in ("softmax", "sigmoid", "softmax_near_best")
        for chosen, _ in [routed(logits, replace(ROUTINGS["softmax"], scores=scores), device)]
    )


def no_tokens(device: torch.device) -> bool:
    """Whether nothing is given for nothing."""
    chosen, shares = routed(torch.empty(0, 6), ROUTINGS["softmax"], device)
    return chosen.shape == shares.shape == (0, 2)


@dataclass(frozen=True)
class Tokens:
    """What goes through experts; of a wider tensor a part, as a model may have it."""

    x: Tensor
    chosen: Tensor
    shares: Tensor

    def some(self, rows: slice, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Some of them, on a device."""
        return self.x.to(device)[rows], self.chosen[rows].to(device), self.shares[rows].to(device)


def drawn(case: Case) -> tuple[list[Tensor], Tokens]:
    """Gates with what they multiply, products back, biases of both; and tokens."""
    dtype = getattr(torch, case.dtype)
    hidden, inter, count = case.hidden_size, case.inter, case.num_experts
    gate_up = torch.randn(count, 2 * inter, hidden) / hidden**0.5 * 3
    down = torch.randn(count, hidden, inter) / inter**0.5
    biases = torch.randn(count, 2 * inter), torch.randn(count, hidden)
    among = torch.tensor(case.only or range(count))
    order = torch.rand(case.num_tokens, len(among)).argsort(1)[:, : case.per_token]
    unread = [expert for expert in range(count) if case.only and expert not in case.only]
    gate_up[unread], down[unread] = torch.nan, torch.nan
    shares = torch.rand(order.shape)
    x = torch.randn(case.num_tokens, hidden + 8).to(dtype)[:, :hidden]
    parts = [part.to(dtype) for part in (gate_up, down, *biases)]
    return parts, Tokens(x, among[order].int().contiguous(), shares)


def packed(case: Case, parts: list[Tensor], device: torch.device) -> Experts:
    from kernels.triton.experts import pack_experts

    gate_up, down, *biases = [list(part.to(device)) for part in parts]
    given = biases if case.has_biases else (None, None)
    return pack_experts(gate_up, down, case.activation, *given, "none", case.batch_invariant)


def expert_error(case: Case, device: torch.device) -> tuple[float, bool | None]:
    """The largest difference; and whether rows get the same bits alone, and beside others."""
    parts, tokens = drawn(case)
    wide = [list(part.double()) for part in parts]
    given = wide if case.has_biases else [*wide[:2], None, None]
    theirs = reference.pack_experts(*given[:2], case.activation, *given[2:], "none", False)
    expected = theirs(tokens.x.double(), tokens.chosen, tokens.shares)
    ours = packed(case, parts, device)
    whole = ours(*tokens.some(slice(None), device))
    assert whole.dtype == tokens.x.dtype
    assert whole.shape == expected.shape
    error = (whole.cpu().double() - expected).abs().max().item() if len(whole) else 0.0
    if not case.batch_invariant:
        return error, None
    some = [slice(0, 1), slice(3, 4), slice(case.num_tokens - 1, None), slice(2, 11)]
    return error, all(torch.equal(ours(*tokens.some(rows, device)), whole[rows]) for rows in some)


def sorted_once(device: torch.device) -> bool:
    """Whether blocks have each row once, with its expert, in order, and all are of experts; and
    whether rows are counted.
    """
    from kernels.triton.experts.rows import TILE, sort_rows

    chosen = torch.randint(1, 5, (TILE, 2), dtype=torch.int32)
    uses = torch.zeros(7 + 2, dtype=torch.int64, device=device)
    rows = sort_rows(chosen.to(device), uses, 16)
    seen = []
    for expert, first, end in rows.blocks.cpu().T.tolist():
        numbers = rows.order[first:end].cpu()
        if expert not in range(7) or len(numbers) > 16:
            return False
        if not (chosen.flatten()[numbers] == expert).all():
            return False
        seen += numbers.tolist()
    if uses.tolist() != [*chosen.flatten().bincount(minlength=7).tolist(), 4, 1]:
        return False
    return seen == chosen.flatten().argsort(stable=True).tolist()


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
    """Whether the host can go on without an answer: torch makes room for results, and no more.

    On a GPU torch itself raises where it waits.
    """
    from kernels.triton.experts import route

    case = Case("watched", 5)
    parts, tokens = drawn(case)
    ours, x = packed(case, parts, device), tokens.x.to(device)
    logits = torch.randn(len(x), case.num_experts, device=device)
    ours(x, *route(logits, ROUTINGS["softmax"]))  # whatever is compiled on first use
    if device.type == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    with _Watch() as watch:
        ours(x, *route(logits, ROUTINGS["softmax"]))
    if device.type == "cuda":
        torch.cuda.set_sync_debug_mode("default")
    interpreter = {"copy_", "set_"}  # which moves what it is given to the host
    return set(watch.seen) - interpreter == {"empty", "new_empty"}


def shared_is_added(device: torch.device) -> bool:
    """Whether what is beside experts is added, through its gate or without, in every type."""
    from kernels.triton.experts import add_shared

    gates, rounding = torch.randn(5, 1), {torch.float32: 1e-5, torch.float16: 2e-3}
    for dtype, most in rounding.items():
        for given in (gates, None):
            update, shared = torch.randn(2, 5, 70).to(dtype)
            expected = update.clone().double()
            reference.add_shared(expected, shared.double(), given)
            ours = update.to(device)
            add_shared(ours, shared.to(device), None if given is None else given.to(device))
            if (ours.cpu().double() - expected).abs().max() > most:
                return False
    return True


def memory(device: torch.device) -> int:
    """What one case's experts take, in bytes."""
    case = Case("memory", 0, has_biases=True)
    experts = packed(case, drawn(case)[0], device)
    assert experts.num_experts == case.num_experts
    return experts.nbytes


def main(device: torch.device) -> None:
    torch.manual_seed(0)
    routings = {name: routing_error(routing, device) for name, routing in ROUTINGS.items()}
    experts = {case.name: expert_error(case, device) for case in CASES}
    asked = rows_apart, no_numbers, no_tokens, sorted_once, nothing_is_waited_for, memory
    asked += (shared_is_added,)
    questions = {one.__name__: one(device) for one in asked}
    print(json.dumps({"routings": routings, "experts": experts, "questions": questions}))


if __name__ == "__main__":
    where = torch.device(sys.argv[1])
    if where.type == "cpu":
        interpret()
    torch.set_num_threads(1)
    # Fills what `torch.empty` returns with NaN; on a GPU there is not always a deterministic way.
    torch.use_deterministic_algorithms(True, warn_only=True)
    main(where)
