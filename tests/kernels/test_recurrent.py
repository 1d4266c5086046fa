"""Recurrent layers: the reference agrees with transformers, and the compiled library with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor
from transformers.models.bamba import modeling_bamba as bamba
from transformers.models.kimi_linear import modeling_kimi_linear as kimi
from transformers.models.qwen3_next import modeling_qwen3_next as qwen

from kernels import recurrent
from kernels.native import library
from kernels.reference.recurrent import read, write
from tests.kernels.recurrent_cases import (
    SHAPES,
    STEPS,
    Paged,
    Shape,
    Steps,
    convolution_inputs,
    delta_inputs,
    paged,
    scan_inputs,
)

Compute = Callable[..., Tensor]
"""Of runs, memory, place and backend."""

built = pytest.mark.skipif(not library.available(), reason="kernels/native is not built")
ON_EACH_SHAPE = pytest.mark.parametrize("shape", SHAPES, ids=str)
ON_EACH_STEP = pytest.mark.parametrize("steps", STEPS, ids=lambda steps: steps.name)
ON_EACH_TYPE = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
ONE = Steps("one", ((90,),))


@pytest.fixture(params=["plain", "avx2", "avx512"])
def _instruction_set(request: pytest.FixtureRequest) -> Iterator[None]:
    library.limit_level(request.param)
    yield
    library.limit_level(library.LEVELS[-1])


def assert_alike(compute: Compute, case: Paged, dtype: torch.dtype) -> None:
    """The library gives what the reference gives, and leaves it, and touches nothing else."""
    expected_memory, actual_memory = case.memory.clone(), case.memory.clone()
    expected = compute(case.runs, expected_memory, case.place, backend="reference")
    actual = compute(case.runs, actual_memory, case.place, backend="native")
    rounding = 2e-5 if dtype == torch.float32 else 0.01
    torch.testing.assert_close(actual, expected, rtol=rounding, atol=rounding)
    untouched = ~case.written
    assert torch.equal(actual_memory[untouched], case.memory[untouched])
    assert torch.equal(expected_memory[untouched], case.memory[untouched])
    states = [memory.view(case.place.dtype) for memory in (actual_memory, expected_memory)]
    torch.testing.assert_close(*states, rtol=2e-5, atol=2e-5, equal_nan=True)


@built
@ON_EACH_TYPE
@ON_EACH_STEP
@pytest.mark.parametrize("channels", [24, 131, 400])
@pytest.mark.usefixtures("_instruction_set")
def test_convolutions_are_those_of_the_reference(
    channels: int, steps: Steps, dtype: torch.dtype
) -> None:
    for width, activation in ((4, "silu"), (3, None), (8, None)):
        x, weight, bias = convolution_inputs(steps, channels, width, dtype)
        case = paged((channels, width), dtype, steps, per_page=channels // 2)
        given = x, weight, bias if activation else None, activation
        assert_alike(partial(recurrent.convolve, *given), case, dtype)


@built
@ON_EACH_TYPE
@ON_EACH_STEP
@ON_EACH_SHAPE
@pytest.mark.parametrize("by_key", [False, True], ids=["gdn", "kda"])
@pytest.mark.usefixtures("_instruction_set")
def test_the_delta_rule_is_that_of_the_reference(
    shape: Shape, steps: Steps, dtype: torch.dtype, by_key: bool
) -> None:
    inputs = delta_inputs(steps, shape, dtype, by_key)
    case = paged((shape.heads, shape.state_dim, shape.head_dim), torch.float32, steps)

    assert_alike(partial(recurrent.gated_delta, *inputs), case, dtype)


@built
@ON_EACH_TYPE
@ON_EACH_STEP
@ON_EACH_SHAPE
@pytest.mark.usefixtures("_instruction_set")
def test_scans_are_those_of_the_reference(shape: Shape, steps: Steps, dtype: torch.dtype) -> None:
    *inputs, d = scan_inputs(steps, shape, dtype)
    case = paged((shape.heads, shape.head_dim, shape.state_dim), torch.float32, steps)

    given = *inputs, d if shape.heads > 2 else None
    assert_alike(partial(recurrent.selective_scan, *given), case, dtype)


@built
@ON_EACH_TYPE
@ON_EACH_SHAPE
@pytest.mark.usefixtures("_instruction_set")
def test_a_token_has_the_same_bits_wherever_runs_are_cut(shape: Shape, dtype: torch.dtype) -> None:
    whole = Steps("whole", ((70,),))
    *scan, d = scan_inputs(whole, shape, dtype)
    delta = delta_inputs(whole, shape, dtype)
    by_key = delta_inputs(whole, shape, dtype, by_key=True)
    for compute, heads in (
        (partial(recurrent.selective_scan, *scan, d), (shape.head_dim, shape.state_dim)),
        (partial(recurrent.gated_delta, *delta), (shape.state_dim, shape.head_dim)),
        (partial(recurrent.gated_delta, *by_key), (shape.state_dim, shape.head_dim)),
    ):
        found, before = [], torch.randn(shape.heads, *heads)
        for lengths in ((70,), (1,) * 70, (3, 1, 33, 4, 29)):
            case = paged((shape.heads, *heads), torch.float32, Steps("cut", (lengths,)))
            write(case.memory, case.place, case.runs.sources[0], before)
            runs = replace(case.runs, batch_invariant=True)
            output = compute(runs, case.memory, case.place, backend="native")
            found.append((output, read(case.memory, case.place, runs.targets[-1])))
        for output, state in found[1:]:
            assert torch.equal(output, found[0][0])
            assert torch.equal(state, found[0][1])


@pytest.mark.parametrize("is_fresh", [True, False])
@pytest.mark.parametrize("by_key", [False, True], ids=["gdn", "kda"])
def test_the_references_delta_rule_is_that_of_transformers(is_fresh: bool, by_key: bool) -> None:
    steps = Steps("one", ((90,),), frozenset({0}) if is_fresh else frozenset())
    shape = Shape(4, 4 if by_key else 2, 16, 24)
    q, k, v, decay, beta = delta_inputs(steps, shape, torch.float32, by_key)
    case = paged((4, 24, 16), torch.float32, steps)
    before = None if is_fresh else read(case.memory, case.place, case.runs.sources[0])[None]
    places = (case.runs, case.memory, case.place)
    found = recurrent.gated_delta(q, k, v, decay, beta, *places, backend="reference")
    after = read(case.memory, case.place, case.runs.targets[0])
    ways = (
        (kimi.recurrent_kimi_delta_attention, kimi.chunk_kimi_delta_attention)
        if by_key
        else (qwen.torch_recurrent_gated_delta_rule, qwen.torch_chunk_gated_delta_rule)
    )
    for way in ways:
        expected, state = way(
            *(part[None] for part in (q, k, v)),
            g=decay[None],
            beta=beta[None],
            initial_state=before,
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
        )
        torch.testing.assert_close(found, expected[0], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(after, state[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("is_fresh", [True, False])
def test_the_references_scan_is_that_of_transformers(is_fresh: bool) -> None:
    steps = Steps("one", ((90,),), frozenset({0}) if is_fresh else frozenset())
    x, dt, a, b, c, d = scan_inputs(steps, Shape(4, 2, 16, 24), torch.float32)
    case = paged((4, 16, 24), torch.float32, steps)
    before = None if is_fresh else read(case.memory, case.place, case.runs.sources[0])[None]
    places = (case.runs, case.memory, case.place)
    found = recurrent.selective_scan(x, dt, a, b, c, d, *places, backend="reference")
    after = read(case.memory, case.place, case.runs.targets[0])
    in_chunks, state = bamba.mamba2_chunk_scan(
        *(part[None] if part.dim() > 1 else part for part in (x, dt, a, b, c)),
        chunk_size=32,
        D=d,
        initial_states=before,
        return_final_states=True,
    )
    torch.testing.assert_close(found, in_chunks[0], rtol=1e-5, atol=2e-5)
    torch.testing.assert_close(after, state[0], rtol=1e-5, atol=1e-5)
    state = torch.zeros(1, 4, 16, 24) if before is None else before
    for token in range(90):
        expected = bamba.mamba2_selective_state_update(
            state,
            x[None, token],
            dt[None, token, :, None].expand(-1, -1, 16),
            a[:, None, None].expand(-1, 16, 24),
            b[None, token],
            c[None, token],
            d[:, None].expand(-1, 16),
        )
        torch.testing.assert_close(found[token], expected[0], rtol=1e-5, atol=2e-5)
    torch.testing.assert_close(after, state[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lengths", [(6,), (1, 2, 3), (2,)])
def test_the_references_convolution_is_that_of_transformers(lengths: tuple[int, ...]) -> None:
    steps = Steps("one", (lengths,), fresh=frozenset({0}))
    x, weight, bias = convolution_inputs(steps, 20, 4, torch.float32)
    case = paged((20, 4), torch.float32, steps)
    places = (case.runs, case.memory, case.place)
    found = recurrent.convolve(x, weight, bias, "silu", *places, backend="reference")
    expected = qwen.causal_conv1d_fn(x.T[None], weight, bias, "silu")
    torch.testing.assert_close(found, expected[0].T, rtol=1e-5, atol=1e-5)
    kept = torch.nn.functional.pad(x.T, (4, 0))[:, -4:]
    torch.testing.assert_close(read(case.memory, case.place, case.runs.targets[-1]), kept)
