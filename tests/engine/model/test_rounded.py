"""Packed products are compared with the model's own, rounded alike: wrong ones are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from engine.api import UnsupportedModel
from engine.config import EngineConfig
from engine.model import load
from engine.model.layers import fused
from engine.model.layers.description import Description, MixtureDescription
from engine.model.layers.eager.decoder import EagerDecoder
from engine.model.rounded import ROUNDINGS, round_weights, rounded_logits, roundings
from engine.model.self_check import relative_error, rounding_error, sample
from kernels.linear import pack
from kernels.native import library, paths
from kernels.types import Quantization
from kernels.weight_format import as_int4, as_int8, group, quantize, rotate
from tests.engine.model.layers.test_fused import make_model
from tests.engine.model.layers.variants import VARIANTS
from tests.engine.model.tiny_families import tiny_config, tiny_model

LAYER = 1
"""Of three, the one that something is wrong with."""
Break = Callable[[Description], bool]
"""Makes a model wrong; says whether it has what is to be wrong."""


def set_weight(product: Any, weight: Tensor) -> bool:
    product.weight = nn.Parameter(weight, requires_grad=False)
    return True


def exchange_gate_and_up(model: Description) -> bool:
    network = model.layers[LAYER].network
    if isinstance(network, MixtureDescription):
        stack = network.experts.module.gate_up_proj
        halves = stack.unflatten(2, (-1, 2)) if is_turned(network) else stack.unflatten(1, (2, -1))
        halves.copy_(halves.flip(3 if is_turned(network) else 1))
        return True
    if len(network.gate_up) == 2:
        network.gate_up.reverse()
        return True
    (both,) = network.gate_up
    parts = both.weight.detach().chunk(2)
    return both.out_features > network.down.in_features and set_weight(both, torch.cat(parts[::-1]))


def is_turned(network: MixtureDescription) -> bool:
    """Whether experts' matrices are by inputs first."""
    return network.experts.is_transposed


def shift_rows(model: Description) -> bool:
    network = model.layers[LAYER].network
    if isinstance(network, MixtureDescription):
        stack = network.experts.module.down_proj
        stack.copy_(stack.roll(1, 2 if is_turned(network) else 1))
        return True
    return set_weight(network.down, network.down.weight.detach().roll(1, 0))


def double_scales(model: Description) -> bool:
    """Of some values: those of all would mean nothing before a norm."""
    layer = model.layers[LAYER]
    weight = layer.qkv[-1].weight.detach().clone()
    num_values = layer.options.num_kv_heads * layer.out.in_features // layer.options.num_heads
    weight[-num_values // 2 :] *= 2
    return set_weight(layer.qkv[-1], weight)


def leave_out_a_bias(model: Description) -> bool:
    """The first layer's for values or, where those have none, of what is behind them."""
    layer = model.layers[0]
    behind = () if isinstance(layer.network, MixtureDescription) else layer.network.gate_up
    for product in (layer.qkv[-1], layer.out, *behind):
        if product.bias is not None:
            product.bias = None
            return True
    return False


def negate_a_norm(model: Description) -> bool:
    options = model.layers[LAYER].options
    norm = options.before_attention or options.after_attention
    assert norm is not None
    norm.weight.neg_()
    return True


BREAKS: dict[str, Break] = {
    "gate and up exchanged": exchange_gate_and_up,
    "rows shifted": shift_rows,
    "scales doubled": double_scales,
    "a bias left out": leave_out_a_bias,
    "a norm negated": negate_a_norm,
}
SOME = {"llama, biases", "gemma3", "phi3", "starcoder2", "mixtral", "gpt_oss"}
QUANTIZATIONS: list[Quantization] = ["none", "int8", "int4"]
EACH = [
    pytest.param(name, scheme, marks=[] if name in SOME else pytest.mark.exhaustive)
    for name in VARIANTS
    for scheme in (QUANTIZATIONS if name in SOME else ["int4"])
]


def config_of(folder: Path, quantize: Quantization, **options: Any) -> EngineConfig:
    return EngineConfig(
        model_path=str(folder),
        device="cpu",
        dtype="bfloat16",
        block_size=8,
        threads=1,
        max_context_tokens=64,
        quantize=quantize,
        **options,
    )


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    saved: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in saved:
            saved[name] = tmp_path_factory.mktemp("variant")
            make_model(VARIANTS[name]).save_pretrained(saved[name])
        return saved[name]

    return folder


def share_of_tolerance(
    folder: Path, quantize: Quantization, monkeypatch: pytest.MonkeyPatch, wrong: Break | None
) -> float | None:
    """How far fused layers are off, as a share of how far they may be; `None` if a model has
    nothing that could be wrong so.
    """
    tolerances, errors, can_be = [], [], [True]
    describe, tolerance = fused.describe, load._tolerance

    def changed(*arguments: Any) -> Description:
        description = describe(*arguments)
        with torch.no_grad():
            can_be.append(wrong is None or wrong(description))
        return description

    def seen(*arguments: Any) -> float:
        tolerances.append(tolerance(*arguments))
        return tolerances[-1]

    def measured(found: Tensor, expected: Tensor, has_experts: bool) -> float:
        errors.append(rounding_error(found, expected, has_experts))
        return errors[-1]

    monkeypatch.setattr(fused, "describe", changed)
    monkeypatch.setattr(load, "_tolerance", seen)
    monkeypatch.setattr(load, "rounding_error", measured)
    config = config_of(folder, quantize)
    model, found = load._load(config, torch.device("cpu"), None, by_kinds=False)
    assert model.weights.is_fused
    share = errors[-2] / tolerances[-1]  # the last one is what quantizing costs
    assert (found is None) == (share < 1)
    return share if all(can_be) else None


@pytest.mark.parametrize(("name", "quantize"), EACH)
def test_right_products_pass_with_room_to_spare(
    name: str,
    quantize: Quantization,
    folders: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    share = share_of_tolerance(folders(name), quantize, monkeypatch, None)
    assert share is not None
    assert share < 0.6


@pytest.mark.parametrize("wrong", BREAKS)
@pytest.mark.parametrize(("name", "quantize"), EACH)
def test_a_wrong_product_is_refused(
    name: str,
    wrong: str,
    quantize: Quantization,
    folders: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    share = share_of_tolerance(folders(name), quantize, monkeypatch, BREAKS[wrong])
    assert share is None or share > 1


@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_a_model_of_wrong_products_is_not_served(
    quantize: Quantization, folders: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    describe = fused.describe

    def wrong(*arguments: Any) -> Description:
        description = describe(*arguments)
        assert exchange_gate_and_up(description)
        return description

    folder = folders("llama")
    assert load.load_model(config_of(folder, quantize)).weights.is_fused
    monkeypatch.setattr(fused, "describe", wrong)
    with pytest.raises(UnsupportedModel, match="differ from the model's own"):
        load.load_model(config_of(folder, quantize))


def test_weights_are_rounded_to_what_packing_makes_of_them() -> None:
    random = torch.Generator().manual_seed(0)
    weight, x = (torch.randn(rows, 100, generator=random) for rows in (48, 9))
    codes, scales = quantize(weight)
    assert relative_error(x @ as_int8(weight).T, rotate(x) @ (codes * scales[:, None]).T) < 1e-6
    assert relative_error(as_int8(weight), weight) > 1e-3
    assert torch.equal(as_int4(weight), group(weight).dequantize())


@pytest.mark.skipif(not library.available(), reason="plain torch need not round activations")
@pytest.mark.parametrize("scheme", ["int8", "int4"])
def test_products_compute_what_their_roundings_say(scheme: Quantization) -> None:
    paths.use(dict.fromkeys(paths.KINDS, paths.PATHS[-1]))  # others' engines may have measured
    random = torch.Generator().manual_seed(1)
    weight, x = (torch.randn(rows, 128, generator=random) for rows in (48, 9))
    rounding = ROUNDINGS[scheme]
    assert rounding.weights is not None
    product = pack([weight], [None], quantization=scheme)
    expected = rounding.inputs(x) @ rounding.weights(weight).T
    assert relative_error(product(x), expected) < 1e-5
    assert relative_error(product(x), x @ weight.T) > 1e-3


@pytest.mark.parametrize("scheme", ["int8", "int4"])
@pytest.mark.parametrize("family", ["mixtral", "gpt_oss"])
def test_experts_are_rounded_along_their_inputs(family: str, scheme: Quantization) -> None:
    model = tiny_model(tiny_config(family))
    found = roundings(model, scheme)
    weights = ROUNDINGS[scheme].weights
    assert weights is not None
    experts = [module for module in found if hasattr(module, "gate_up_proj")]
    assert len(experts) == model.config.num_hidden_layers
    before = {name: tensor.clone() for name, tensor in model.named_parameters()}
    decoder = EagerDecoder(model)
    ids = sample(model.config.vocab_size)
    rounded_alone, error = rounded_logits(decoder, ids, torch.float32, found)
    assert all(torch.equal(before[name], now) for name, now in model.named_parameters())
    with torch.no_grad():
        for module, rounding in found.items():
            if module not in experts:
                module.weight.copy_(rounding.weights(module.weight))  # type: ignore[misc, operator]
                continue
            for stacked in (module.gate_up_proj, module.down_proj):
                for one in stacked:
                    matrix = one.mT if family == "gpt_oss" else one
                    matrix.copy_(weights(matrix.clone()))
    assert relative_error(rounded_alone, decoder.own_logits(ids)) < 1e-5
    assert 1e-4 < error < 0.3


def test_what_is_cut_by_inputs_is_rounded_in_parts() -> None:
    weight = torch.randn(3, 100, generator=torch.Generator().manual_seed(2))
    weight[:, :40] *= 100
    cut = ROUNDINGS["int8"].in_parts([40, 60], is_second=False)
    assert cut.weights is not None
    whole = as_int8(weight)
    parts = torch.cat([as_int8(weight[:, :40]), as_int8(weight[:, 40:])], 1)
    assert torch.equal(cut.weights(weight), parts)
    assert not torch.equal(parts, whole)
    of_experts = ROUNDINGS["int8"].in_parts([40, 60], is_second=True)
    assert of_experts.back is not None
    assert torch.equal(of_experts.back(weight), parts)
    assert of_experts.weights is ROUNDINGS["int8"].weights
    round_weights(weight, cut.weights)
    assert torch.equal(weight, parts)


def test_tokens_for_which_a_rounding_chooses_other_experts_judge_no_product() -> None:
    expected = torch.randn(40, 9, generator=torch.Generator().manual_seed(1))
    near = 1.01 * expected
    chosen = torch.arange(40)[:, None] < 33  # by the rounding; others compute them
    found = torch.where(chosen, expected.roll(1, dims=0), near)
    assert rounding_error(found, expected, has_experts=True) == pytest.approx(0.01)
    assert rounding_error(2 * found, expected, has_experts=True) > 1
    assert rounding_error(found, expected, has_experts=False) > 1
