"""How many experts there may be, and how many of them a token may go through."""

from __future__ import annotations

import pytest

from engine.model.layers.eager.decoder import EagerDecoder
from engine.model.layers.expected import Unfamiliar
from engine.model.layers.fused import fuse
from tests.engine.model.layers.test_fused import make_model


@pytest.mark.parametrize(("per_token", "num_experts"), [(0, 3), (2, 1025)])
def test_layers_of_no_or_too_many_experts_are_not_fused(per_token: int, num_experts: int) -> None:
    options = {"num_local_experts": num_experts, "num_experts_per_tok": 2, "intermediate_size": 8}
    model = make_model(("mixtral", options))
    decoder = EagerDecoder(model)
    for layer in model.model.layers:
        layer.mlp.gate.top_k = per_token
    with pytest.raises(Unfamiliar, match=f"{per_token} of {num_experts} experts a token"):
        fuse(model, decoder.calls)
