"""Experts: what those that a router chose make of a token, and what its sum is.

By the compiled library, and by the reference in the model's types, which serves without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from kernels.backends import Backend
from kernels.experts import add_shared, pack_experts, route
from kernels.native import library
from kernels.types import Activation, Experts, Quantization, Routing
from kernels.weight_format import group, quantize, rotate

BACKENDS: list[Backend] = ["reference", "native"] if library.available() else ["reference"]
ON_EACH = pytest.mark.parametrize("backend", BACKENDS)
SCHEMES: list[tuple[torch.dtype, Quantization]] = [
    (dtype, scheme)
    for dtype in (torch.float32, torch.bfloat16)
    for scheme in ("none", "int8", "int4")
]
ACTIVATIONS: dict[Activation, Callable[[Tensor, Tensor], Tensor]] = {
    "silu": lambda gate, up: functional.silu(gate) * up,
    "gelu_tanh": lambda gate, up: functional.gelu(gate, approximate="tanh") * up,
    "relu2": lambda gate, up: functional.relu(gate).square() * up,
    "clamped_swiglu": lambda gate, up: (
        gate.clamp(max=7) * torch.sigmoid(1.702 * gate.clamp(max=7)) * (up.clamp(-7, 7) + 1)
    ),
}


@pytest.fixture(params=["plain", "avx2", "avx512", "avx512_bf16", "amx"])
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    """The kernels of that instruction set, or of the best one that this machine has below it."""
    library.limit_level(request.param)
    yield request.param
    library.limit_level(library.LEVELS[-1])


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    library.limit_level(library.LEVELS[-1])
    library.set_threads(torch.get_num_threads())


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return float((actual.double() - expected).norm() / expected.norm())


class Networks:
    """Weights of some experts, and what they are by definition."""

    def __init__(
        self,
        dtype: torch.dtype = torch.float32,
        count: int = 6,
        hidden: int = 64,
        inter: int = 48,
        has_biases: bool = False,
    ) -> None:
        self.count, self.hidden = count, hidden
        self.gate_up = list(drawn(count, 2 * inter, hidden, seed=1, dtype=dtype) / hidden**0.5)
        self.down = list(drawn(count, hidden, inter, seed=2, dtype=dtype) / inter**0.5)
        self.biases = None
        if has_biases:
            first, second = drawn(count, 2 * inter, seed=3), drawn(count, hidden, seed=4)
            self.biases = list(first.to(dtype)), list(second.to(dtype))

    def packed(
        self,
        backend: Backend | None = None,
        activation: Activation = "silu",
        quantization: Quantization = "none",
    ) -> Experts:
        return pack_experts(
            *(self.gate_up, self.down, activation, *(self.biases or ())),
            quantization=quantization,
            batch_invariant=True,
            backend=backend,
        )

    def define(
        self,
        x: Tensor,
        chosen: Tensor,
        shares: Tensor,
        activation: Activation = "silu",
        quantization: Quantization = "none",
    ) -> Tensor:
        """Token by token, expert by expert, in double precision."""
        outputs = torch.zeros(x.shape, dtype=torch.float64)
        for token, (experts, counts) in enumerate(zip(chosen.tolist(), shares, strict=True)):
            for expert, share in zip(experts, counts.double(), strict=True):
                into = rounded(self.gate_up[expert], quantization)
                back = rounded(self.down[expert], quantization)
                first, second = (0.0, 0.0)
                if self.biases is not None:
                    first, second = (bias[expert].double() for bias in self.biases)
                gate, up = (into @ x[token].double() + first).chunk(2)
                outputs[token] += share * (back @ ACTIVATIONS[activation](gate, up) + second)
        return outputs


def rounded(weight: Tensor, quantization: Quantization) -> Tensor:
    """What packed weights stand for."""
    if quantization == "int4":
        return group(weight).dequantize().double()
    if quantization == "int8":
        codes, scales = quantize(weight)
        return rotate(codes * scales[:, None])[:, : weight.shape[1]].double()
    return weight.double()


def tolerance(dtype: torch.dtype, quantization: Quantization) -> float:
    """Of inputs in 8 bits, twice; weights are those that the codes stand for."""
    rounding = 2e-6 if dtype == torch.float32 else 8e-3
    return rounding + (0.0 if quantization == "none" else 2e-2)


def choices(tokens: int, count: int, per_token: int, seed: int = 5) -> tuple[Tensor, Tensor]:
    return route(drawn(tokens, count, seed=seed), Routing(count, per_token, "softmax"))


def assert_right(
    networks: Networks,
    dtype: torch.dtype,
    quantization: Quantization = "none",
    activation: Activation = "silu",
    backend: Backend | None = None,
    tokens: int = 40,
) -> None:
    x, chosen = drawn(tokens, networks.hidden, dtype=dtype), choices(tokens, networks.count, 3)
    actual = networks.packed(backend, activation, quantization)(x, *chosen)
    expected = networks.define(x, *chosen, activation, quantization)
    assert actual.dtype == dtype
    assert relative_error(actual, expected) < tolerance(dtype, quantization)


@ON_EACH
@pytest.mark.parametrize(("dtype", "quantization"), SCHEMES)
@pytest.mark.parametrize("has_biases", [False, True])
def test_a_token_gets_what_its_experts_make_of_it(
    backend: Backend, dtype: torch.dtype, quantization: Quantization, has_biases: bool
) -> None:
    assert_right(Networks(dtype, has_biases=has_biases), dtype, quantization, backend=backend)


@ON_EACH
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation_is_between_the_products(backend: Backend, activation: Activation) -> None:
    networks = Networks(has_biases=True)
    for weight in networks.gate_up:
        weight *= 6  # beyond what is clamped
    assert_right(networks, torch.float32, activation=activation, backend=backend)


@pytest.mark.skipif(not library.available(), reason="kernels/native is not built")
@pytest.mark.parametrize(("dtype", "quantization"), SCHEMES)
def test_every_instruction_set_gives_what_its_experts_make(
    instruction_set: str, dtype: torch.dtype, quantization: Quantization
) -> None:
    for hidden, inter in ((64, 48), (40, 7), (200, 100)):
        networks = Networks(dtype, 5, hidden, inter, has_biases=True)
        assert_right(networks, dtype, quantization, "clamped_swiglu")


@ON_EACH
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_token_one_token_and_all_tokens_to_one_expert(
    backend: Backend, dtype: torch.dtype
) -> None:
    networks = Networks(dtype)
    experts = networks.packed(backend)
    for tokens, expert in ((0, 0), (1, 5), (50, 3)):
        x = drawn(tokens, networks.hidden, dtype=dtype)
        chosen = torch.full((tokens, 1), expert, dtype=torch.int32)
        shares = drawn(tokens, 1)
        actual = experts(x, chosen, shares)
        assert actual.shape == x.shape
        if tokens:
            expected = networks.define(x, chosen, shares)
            assert relative_error(actual, expected) < tolerance(dtype, "none")


@ON_EACH
def test_experts_that_nobody_chose_are_not_read(backend: Backend) -> None:
    networks = Networks()
    x, (chosen, shares) = drawn(9, networks.hidden), choices(9, 4, 2)
    expected = networks.packed(backend)(x, chosen, shares)
    for expert in (4, 5):
        networks.gate_up[expert] = torch.full_like(networks.gate_up[expert], torch.nan)
        networks.down[expert] = torch.full_like(networks.down[expert], torch.nan)
    assert torch.equal(networks.packed(backend)(x, chosen, shares), expected)


@pytest.mark.skipif(not library.available(), reason="kernels/native is not built")
@pytest.mark.parametrize(("dtype", "quantization"), SCHEMES)
def test_a_token_has_the_same_bits_beside_any_others_and_with_any_number_of_threads(
    instruction_set: str, dtype: torch.dtype, quantization: Quantization
) -> None:
    networks = Networks(dtype, 8, 192, 144)
    experts = networks.packed(quantization=quantization)
    x, (chosen, shares) = drawn(150, 192, dtype=dtype), choices(150, 8, 3)
    parts = (part.split(1) for part in (x, chosen, shares))
    alone = torch.cat([experts(*one) for one in zip(*parts, strict=True)])
    for threads in (1, 2, 3):
        library.set_threads(threads)
        for rows in (2, 9, 33, 150):
            assert torch.equal(experts(x[:rows], chosen[:rows], shares[:rows]), alone[:rows])
            assert torch.equal(experts(x[-rows:], chosen[-rows:], shares[-rows:]), alone[-rows:])


@pytest.mark.skipif(not library.available(), reason="kernels/native is not built")
def test_more_rows_than_are_computed_together_are_computed_one_part_after_the_other() -> None:
    networks = Networks(count=4, hidden=8, inter=4)
    x, (chosen, shares) = drawn(9001, 8), choices(9001, 4, 2)
    expected = networks.packed("reference")(x, chosen, shares)
    torch.testing.assert_close(networks.packed("native")(x, chosen, shares), expected)


@ON_EACH
def test_shares_are_summed_before_the_result_is_rounded(backend: Backend) -> None:
    """What two experts give cancels but for a part that bfloat16 would round away in each."""
    networks = Networks(torch.bfloat16, 2)
    networks.gate_up[1], networks.down[1] = networks.gate_up[0], networks.down[0]
    x, chosen = drawn(5, 64, dtype=torch.bfloat16), torch.tensor([[0, 1]] * 5, dtype=torch.int32)
    shares = torch.tensor([[1.0, -1.0 + 2**-12]] * 5)
    actual = networks.packed(backend)(x, chosen, shares)
    assert relative_error(actual, networks.define(x, chosen, shares)) < 2e-2


@ON_EACH
def test_experts_keep_their_own_weights_and_say_how_large_they_are(backend: Backend) -> None:
    networks = Networks(torch.bfloat16, hidden=64, inter=32)
    experts = networks.packed(backend)
    assert (experts.num_experts, experts.nbytes) == (6, 6 * 2 * 3 * 64 * 32)


@ON_EACH
def test_experts_count_their_tokens_and_how_often_they_are_read(backend: Backend) -> None:
    experts = Networks().packed(backend)
    (first, shares), (second, _) = choices(9, 4, 2), choices(2, 6, 2, seed=6)
    for chosen in (first, second):
        experts(drawn(len(chosen), 64), chosen, shares[: len(chosen)])
    tokens = torch.cat([first, second]).flatten().bincount(minlength=6).tolist()
    read = len(first.unique()) + len(second.unique())
    assert experts.uses.tolist() == [*tokens, read, 2]


@pytest.mark.skipif(not library.available(), reason="kernels/native is not built")
def test_inputs_that_do_not_fit_are_refused() -> None:
    experts, (chosen, shares) = Networks().packed(), choices(2, 6, 2)
    with pytest.raises(ValueError, match="width 65"):
        experts(drawn(2, 65), chosen, shares)
    with pytest.raises(ValueError, match="float16"):
        experts(drawn(2, 64).half(), chosen, shares)


def test_quantized_experts_are_for_cpus() -> None:
    with pytest.raises(ValueError, match="quantize"):
        pack_experts(
            *([torch.empty(8, 16, device="meta")], [torch.empty(16, 4, device="meta")], "silu"),
            quantization="int8",
        )


def test_float16_goes_through_experts_too() -> None:
    networks = Networks(torch.float16)
    x, chosen = drawn(9, 64, dtype=torch.float16), choices(9, 6, 2)
    assert relative_error(networks.packed()(x, *chosen), networks.define(x, *chosen)) < 3e-3


@ON_EACH
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("is_gated", [False, True])
def test_what_a_network_beside_the_experts_gives_is_added_through_its_gate(
    backend: Backend, dtype: torch.dtype, is_gated: bool
) -> None:
    update, shared = drawn(5, 70, dtype=dtype), drawn(5, 70, seed=1, dtype=dtype)
    gates = drawn(5, 1, seed=2) * 3 if is_gated else None
    factor = 1 if gates is None else torch.sigmoid(gates.double())
    expected = update.double() + shared.double() * factor
    add_shared(update, shared, gates, backend=backend)
    rounding = {torch.float32: 1e-6, torch.bfloat16: 4e-3, torch.float16: 5e-4}[dtype]
    torch.testing.assert_close(update.double(), expected, rtol=rounding, atol=1e-6)
