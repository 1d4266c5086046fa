"""What the ranks compute of a network adds up to what one computes alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.model.layers.eager.decoder import EagerDecoder
from engine.model.layers.fused import FusedDecoder, fuse
from engine.model.layers.shard import Shard
from tests.engine.model.layers.test_fused import make_model
from tests.engine.model.layers.variants import VARIANTS

UNEVEN: dict[str, Any] = {
    **{"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 3},
    **dict.fromkeys(("intermediate_size", "moe_intermediate_size"), 44),
    **dict.fromkeys(("shared_intermediate_size", "shared_expert_intermediate_size"), 52),
}
"""Widths that are not of three equal parts."""


def all_ranks(name: str) -> list[FusedDecoder]:
    return [fused(name, Shard(rank, 3)) for rank in range(3)]


def fused(name: str, shard: Shard | None = None) -> FusedDecoder:
    family, options = VARIANTS[name]
    model = make_model((family, options | UNEVEN))
    return fuse(model, EagerDecoder(model).calls, shard=shard)


@torch.inference_mode()
@pytest.mark.parametrize(
    "name",
    ["llama, biases", "qwen2_moe", "granitemoeshared", "glm4_moe", "ernie4_5_moe", "gpt_oss"],
)
def test_parts_of_every_network_add_up_to_the_whole(name: str) -> None:
    whole, parts = fused(name), all_ranks(name)
    x = torch.randn(7, whole.hidden_size)
    for index, layer in enumerate(whole._layers):
        expected = whole._through(layer.network, x, layer.options.is_plain, index, ())
        found = [part._through(part._layers[index].network, x, False, index, ()) for part in parts]
        torch.testing.assert_close(sum(found), expected, rtol=1e-4, atol=1e-4)
        assert not torch.allclose(found[0], expected, rtol=1e-2, atol=1e-2)
        assert not torch.allclose(found[0], found[1], rtol=1e-2, atol=1e-2)


def test_sinks_stay_with_their_heads() -> None:
    whole, parts = fused("gpt_oss"), all_ranks("gpt_oss")
    for index in range(whole.num_layers):
        sinks, *own = (each._layers[index].options.sinks for each in (whole, *parts))
        assert sinks is not None
        torch.testing.assert_close(list(sinks.split(2)), own)
