"""Routing: whom each family's own router chooses, and what the chosen ones count.

By the compiled library, and by the reference, which serves without it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers import AutoConfig
from transformers.models.ernie4_5_moe.modeling_ernie4_5_moe import Ernie4_5_MoeTopKRouter
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeTopkRouter
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssTopKRouter
from transformers.models.granitemoe.modeling_granitemoe import GraniteMoeTopKRouter
from transformers.models.mixtral.modeling_mixtral import MixtralTopKRouter
from transformers.models.phimoe.modeling_phimoe import PhimoeTopKRouter
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

from kernels.backends import Backend
from kernels.experts import route
from kernels.types import Routing
from tests.effort import scaled
from tests.kernels.test_experts import ON_EACH, drawn

NUM_EXPERTS, HIDDEN = 16, 24
_SIZES = {"hidden_size": HIDDEN, "num_experts_per_tok": 4}
_LOCAL = _SIZES | {"num_local_experts": NUM_EXPERTS}
_ROUTED = _SIZES | {"n_routed_experts": NUM_EXPERTS}

Router = tuple[type[nn.Module], str, dict[str, Any], Callable[[nn.Module], Routing]]


def _corrected(router: nn.Module) -> Tensor:
    holder: Any = getattr(router, "moe_statics", router)
    return holder.e_score_correction_bias.detach().flatten()


ROUTERS: dict[str, Router] = {
    "mixtral": (MixtralTopKRouter, "mixtral", _LOCAL, lambda _: Routing(NUM_EXPERTS, 4, "softmax")),
    "granite": (
        *(GraniteMoeTopKRouter, "granitemoe", _LOCAL),
        lambda _: Routing(NUM_EXPERTS, 4, "softmax"),
    ),
    "gpt-oss": (GptOssTopKRouter, "gpt_oss", _LOCAL, lambda _: Routing(NUM_EXPERTS, 4, "softmax")),
    "qwen3, as they are": (
        *(Qwen3MoeTopKRouter, "qwen3_moe"),
        _SIZES | {"num_experts": NUM_EXPERTS, "norm_topk_prob": False},
        lambda _: Routing(NUM_EXPERTS, 4, "softmax", is_normalised=False),
    ),
    "glm4, groups": (
        *(Glm4MoeTopkRouter, "glm4_moe"),
        _ROUTED | {"n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5},
        lambda router: Routing(
            *(NUM_EXPERTS, 4, "sigmoid", _corrected(router), 4, 2), least_sum=1e-20, scale=2.5
        ),
    ),
    "glm4, as they are": (
        *(Glm4MoeTopkRouter, "glm4_moe"),
        _ROUTED | {"n_group": 1, "topk_group": 1, "norm_topk_prob": False},
        lambda router: Routing(NUM_EXPERTS, 4, "sigmoid", _corrected(router), is_normalised=False),
    ),
    "ernie": (
        *(Ernie4_5_MoeTopKRouter, "ernie4_5_moe"),
        {"hidden_size": HIDDEN, "moe_k": 4, "moe_num_experts": NUM_EXPERTS, "moe_norm_min": 0.4},
        lambda router: Routing(NUM_EXPERTS, 4, "softmax", _corrected(router), least_sum=0.4),
    ),
    "phimoe": (
        *(PhimoeTopKRouter, "phimoe"),
        _LOCAL | {"num_experts_per_tok": 2, "router_jitter_noise": 0.1},
        lambda _: Routing(NUM_EXPERTS, 2, "softmax_near_best", is_normalised=False, margin=2 * 0.1),
    ),
}


@ON_EACH
@pytest.mark.parametrize("name", ROUTERS)
def test_a_token_has_the_experts_and_shares_of_its_familys_own_router(
    backend: Backend, name: str
) -> None:
    kind, family, options, routing_of = ROUTERS[name]
    router = kind(AutoConfig.for_model(family, **options)).eval()
    for key, tensor in router.state_dict().items():
        tensor.copy_(torch.randn(tensor.shape) * (0.05 if "correction" in key else 0.4))
    with torch.no_grad():
        logits, *found = router(torch.randn(500, HIDDEN))
    shares, experts = sorted(found, key=lambda tensor: not tensor.is_floating_point())
    routing = routing_of(router)
    chosen, actual = route(logits.float(), routing, backend=backend)
    assert (chosen.dtype, actual.dtype) == (torch.int32, torch.float32)
    assert chosen.is_contiguous()
    table = torch.zeros(2, 500, NUM_EXPERTS)
    table[0].scatter_(1, experts, shares)
    table[1].scatter_(1, chosen.long(), actual)
    torch.testing.assert_close(table[1], table[0], rtol=1e-5, atol=1e-6)
    assert len(chosen.unique()) == NUM_EXPERTS


@ON_EACH
@pytest.mark.parametrize("scores", ["softmax", "sigmoid", "softmax_near_best"])
def test_of_experts_with_the_same_score_the_first_is_chosen(backend: Backend, scores: Any) -> None:
    logits = torch.tensor([[1.0, 3.0, 1.0, 3.0, 1.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    routing = Routing(5, 3, scores, is_normalised=False, margin=10.0)
    chosen, shares = route(logits, routing, backend=backend)
    assert chosen.tolist() == [[1, 3, 0], [0, 1, 2]]
    assert bool((shares > 0).all())


@ON_EACH
def test_of_groups_with_the_same_best_experts_the_first_are_kept(backend: Backend) -> None:
    logits = torch.tensor([[1.0, 0.0, 9.0, -9.0, 1.0, 0.0, 1.0, 0.0]])
    routing = Routing(8, 3, "sigmoid", num_groups=4, kept_groups=2, is_normalised=False)
    chosen, _ = route(logits, routing, backend=backend)
    assert chosen.tolist() == [[0, 4, 1]]


@ON_EACH
def test_a_correction_chooses_and_counts_nothing(backend: Backend) -> None:
    correction = torch.tensor([0.0, 2.0, -2.0])
    routing = Routing(3, 1, "sigmoid", correction, is_normalised=False)
    chosen, shares = route(torch.tensor([[1.0, 0.0, 5.0]]), routing, backend=backend)
    assert chosen.tolist() == [[1]]
    assert shares.tolist() == [[0.5]]


@ON_EACH
@settings(max_examples=scaled(40), deadline=None)
@given(data=st.data())
def test_any_routing_is_that_of_its_definition(backend: Backend, data: st.DataObject) -> None:
    """In double precision, of logits that lie apart."""
    groups = data.draw(st.integers(1, 4))
    size = data.draw(st.integers(1, 9))
    kept = data.draw(st.integers(1, groups))
    count, tokens = groups * size, data.draw(st.integers(0, 9))
    scores = data.draw(st.sampled_from(["softmax", "sigmoid"]))
    least = data.draw(st.sampled_from([0.0, 0.5]))
    correction = drawn(count, seed=3) * 0.1 if data.draw(st.booleans()) else None
    per_token = data.draw(st.integers(1, min(kept * size, 8)))
    is_normalised, scale = data.draw(st.booleans()), data.draw(st.sampled_from([1.0, 2.5]))
    routing = Routing(
        *(count, per_token, scores, correction, groups, kept, is_normalised, least, scale)
    )
    logits = drawn(tokens, count, seed=data.draw(st.integers(0, 99)))
    chosen, shares = route(logits, routing, backend=backend)
    assert chosen.shape == shares.shape == (tokens, per_token)
    for row, experts, actual in zip(logits.double(), chosen.tolist(), shares, strict=True):
        each = row.softmax(0) if scores == "softmax" else row.sigmoid()
        wanted = each if correction is None else each + correction.double()
        rated = [sum(sorted(part.tolist())[-2:]) for part in wanted.split(size)]
        best = sorted(range(groups), key=lambda one: -rated[one])[:kept]
        among = [expert for expert in range(count) if expert // size in best]
        assert experts == sorted(among, key=lambda one: -wanted[one])[:per_token]
        counts = each[experts] / (max(float(each[experts].sum()), least) if is_normalised else 1)
        torch.testing.assert_close(actual.double(), counts * scale, rtol=1e-5, atol=1e-7)
