"""What lies on a machine is found, with what it takes of memory; what does not fit is not named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter, quantize
from huggingface_hub import constants
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM
from typer.testing import CliRunner

from app.cli import models as command
from app.cli.models import stronger_models
from app.cli.program import app
from app.models import inventory
from app.models.inventory import models_at_hand
from app.models.sizes import (
    KNOWN,
    best_kind,
    fitting,
    shape_of,
    shape_of_file,
    stored_bytes,
)
from app.settings import Settings
from engine.model.weights import DEFAULT_MODEL, GGUF_INDEX, GGUF_LINK

GIB = 1 << 30
ROUTERS = ("gate.weight", "router.weight", "router.layer.weight")


def save(folder: Path, tied: bool = True, **fields: object) -> None:
    config = AutoConfig.for_model(
        "llama", vocab_size=100, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=tied, **fields,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without models."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(inventory, "default_gguf", lambda: None)
    return tmp_path


@pytest.mark.parametrize("tied", [True, False])
def test_the_size_of_a_model_is_that_of_its_weights(tmp_path: Path, tied: bool) -> None:
    save(tmp_path, tied)
    shape = shape_of(tmp_path)
    assert shape is not None
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert shape.parameters == sum(one.numel() for one in loaded.parameters())
    assert (shape.is_tied, shape.table) == (tied, 3200)
    assert shape.kv_token_bytes == 2 * 2 * 2 * 8 * 2  # layers, keys and values, heads
    own_head = 2 * 3200 if tied else 0
    assert shape.weight_bytes("bfloat16") == 2 * shape.parameters + own_head
    assert shape.weight_bytes("int4") < shape.weight_bytes("int8") < shape.weight_bytes("bfloat16")
    assert stored_bytes(tmp_path) >= 2 * shape.parameters
    embedding = 2 * 3200
    for kind in ("bfloat16", "int8", "int4"):
        assert shape.active_bytes(kind) == shape.weight_bytes(kind) - embedding


@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss", "granitemoe", "glm4_moe"])
def test_a_token_reads_its_own_experts_alone(family: str, tmp_path: Path) -> None:
    config = AutoConfig.for_model(
        family, vocab_size=100, hidden_size=32, intermediate_size=48, moe_intermediate_size=16,
        num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        num_experts=8, num_local_experts=8, n_routed_experts=8, num_experts_per_tok=2,
        n_group=1, topk_group=1, tie_word_embeddings=False, pad_token_id=0,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(tmp_path)
    shape = shape_of(tmp_path)
    assert shape is not None
    sizes = {name: one.numel() for name, one in model.state_dict().items()}
    experts = sum(
        size
        for name, size in sizes.items()
        if ".experts." in name or ".input_linear" in name or ".output_linear" in name
    )
    routers = sum(size for name, size in sizes.items() if name.endswith(ROUTERS))
    assert experts
    assert routers
    assert (shape.parameters, shape.experts.count) == (sum(sizes.values()), experts)
    assert shape.active_share == 2 / 8
    assert shape.weight_bytes("bfloat16") == 2 * (sum(sizes.values()) + routers)
    others = sum(sizes.values()) + routers - experts - 3200
    assert shape.active_bytes("bfloat16") == 2 * (others + experts // 4)


def test_codes_take_what_they_take_whatever_the_others_are_quantized_to(tmp_path: Path) -> None:
    save(tmp_path, tied=False, num_local_experts=4, num_experts_per_tok=1)
    config = tmp_path / "config.json"
    written = json.loads(config.read_text())
    plain = {
        "model.embed_tokens.weight": torch.zeros(100, 32),
        "lm_head.weight": torch.zeros(100, 32),
    }
    plain["model.layers.0.self_attn.q_proj.weight"] = torch.zeros(32, 32)
    blocks = torch.zeros(4, 64, 2, 16, dtype=torch.uint8)  # two codes each
    name = "model.layers.0.mlp.experts.gate_up_proj"
    codes = {f"{name}_blocks": blocks, f"{name}_scales": blocks[..., 0]}
    save_file(
        {**plain, **{key: one.contiguous() for key, one in codes.items()}},
        tmp_path / "model.safetensors",
    )
    config.write_text(json.dumps(written | {"quantization_config": {"quant_method": "mxfp4"}}))
    shape = shape_of(tmp_path)
    assert shape is not None
    in_codes = 4 * 64 * 64
    assert (shape.experts.count, shape.parameters) == (in_codes, in_codes + 2 * 3200 + 1024)
    for kind, bits, head in (("bfloat16", 16, 16), ("int4", 5, 8.25)):
        others = 1024 * bits + 3200 * (head + 16)
        assert shape.weight_bytes(kind) == int(in_codes * 5 + others) // 8
    assert shape.active_bytes("int4") == int(in_codes * 5 / 4 + 1024 * 5 + 3200 * 8.25) // 8
    config.write_text(json.dumps(written | {"quantization_config": {"quant_method": "strange"}}))
    assert shape_of(tmp_path) is None


def test_a_converted_file_s_codes_stay_too(tmp_path: Path) -> None:
    save(tmp_path)
    kinds = {"q": "Q4_K", "k": "Q6_K", "v": "BF16"}
    index = {
        f"model.layers.0.self_attn.{name}_proj.weight": {"shape": [32, 32], "kind": kind}
        for name, kind in kinds.items()
    }
    index["model.embed_tokens.weight"] = {"shape": [100, 32], "kind": "Q6_K"}
    (tmp_path / GGUF_INDEX).write_text(json.dumps(index))
    shape = shape_of(tmp_path)
    assert shape is not None
    table = 3200 * (16 + 16)
    assert shape.weight_bytes("bfloat16") == (1024 * (5 + 9 + 16) + table) // 8


@pytest.mark.parametrize(
    ("quantization", "stored", "bits"),
    [
        ({"quant_method": "fp8"}, {"weight": (torch.float8_e4m3fn, 1)}, None),
        (
            {"format": "float-quantized", "config_groups": {"0": {"weights": {"num_bits": 8}}}},
            {"weight": (torch.float8_e4m3fn, 1)},
            None,
        ),
        (
            {"format": "pack-quantized", "config_groups": {"0": {"weights": {"num_bits": 4}}}},
            {"weight_packed": (torch.int32, 8)},
            5,
        ),
        (
            {"format": "int-quantized", "config_groups": {"0": {"weights": {"num_bits": 8}}}},
            {"weight": (torch.int8, 1)},
            9,
        ),
    ],
    ids=["fp8", "floats", "packed", "bytes"],
)
def test_what_lies_beside_codes_is_no_parameter(
    quantization: dict[str, object],
    stored: dict[str, tuple[torch.dtype, int]],
    bits: float | None,
    tmp_path: Path,
) -> None:
    """Floats of 8 bits are widened, and then quantized as the others are."""
    save(tmp_path, tied=False, num_local_experts=4, num_experts_per_tok=1)
    [(part, (dtype, per_word))] = stored.items()
    tensors = {
        "model.embed_tokens.weight": torch.zeros(100, 32),
        "lm_head.weight": torch.zeros(100, 32),
    }
    for expert in range(4):
        owner = f"model.layers.0.mlp.experts.{expert}.up_proj"
        tensors[f"{owner}.{part}"] = torch.zeros(64, 32 // per_word).to(dtype)
        for beside in ("weight_scale", "weight_scale_inv", "input_scale", "weight_zero_point"):
            tensors[f"{owner}.{beside}"] = torch.zeros(64)
        tensors[f"{owner}.weight_shape"] = torch.tensor([64, 32])
    save_file(tensors, tmp_path / "model.safetensors")
    config = tmp_path / "config.json"
    method = {"quant_method": "compressed-tensors", **quantization}
    config.write_text(json.dumps(json.loads(config.read_text()) | {"quantization_config": method}))
    shape = shape_of(tmp_path)
    assert shape is not None
    assert (shape.experts.count, shape.parameters) == (4 * 64 * 32, 4 * 64 * 32 + 2 * 3200)
    for kind, usual in (("bfloat16", 16), ("int4", 5)):
        table = 3200 * (16 + (16 if kind == "bfloat16" else 8.25))
        in_layers = 4 * 64 * 32 * (bits or usual)
        assert shape.weight_bytes(kind) == int(in_layers + table) // 8


def write_gguf(path: Path, architecture: str, kind: GGMLQuantizationType) -> None:
    """Of a layer with four experts of which a token goes through one, and a tied head."""
    writer = GGUFWriter(path, architecture)
    writer.add_embedding_length(64)
    writer.add_block_count(1)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_key_length(32)
    writer.add_expert_count(4)
    writer.add_expert_used_count(1)
    writer.add_token_list([f"token {number}" for number in range(100)])
    writer.add_token_scores([0.0] * 100)
    writer.add_tensor("token_embd.weight", np.zeros((100, 64), np.float32))
    writer.add_tensor("rope_freqs.weight", np.zeros(16, np.float32))
    writer.add_tensor("blk.0.ffn_gate_inp.weight", np.zeros((4, 64), np.float32))
    codes = quantize(np.zeros((4, 32, 64), np.float32), kind)
    writer.add_tensor("blk.0.ffn_up_exps.weight", codes, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize(
    ("architecture", "bits"), [("qwen3moe", 5), ("an architecture that is widened", 16)]
)
def test_a_file_tells_its_sizes_before_it_is_converted(
    architecture: str, bits: int, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, architecture, GGMLQuantizationType.Q4_0)
    shape = shape_of_file(path)
    assert shape is not None
    experts, router, table = 4 * 32 * 64, 4 * 64, 100 * 64
    assert (shape.experts.count, shape.active_share) == (experts, 1 / 4)
    assert shape.parameters == experts + router + table
    assert shape.kv_token_bytes == 2 * 2 * 32 * 2
    every = 32 * router + 16 * table
    assert shape.weight_bytes("bfloat16") == (bits * experts + every + 16 * table) // 8
    assert shape.active_bytes("bfloat16") == (bits * experts // 4 + every) // 8
    widened = shape_of_file(path, widens=True)
    assert widened is not None
    assert widened.weight_bytes("bfloat16") == (16 * experts + every + 16 * table) // 8


def test_a_file_that_is_cut_off_or_says_nonsense_has_no_sizes(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, "qwen3moe", GGMLQuantizationType.Q4_0)
    whole = path.read_bytes()
    assert shape_of_file(path) is not None
    header = whole.index(b"blk.0.ffn_up_exps") + 60
    for length in range(0, header, 7):
        path.write_bytes(whole[:length])
        assert shape_of_file(path) is None, length
    for place in (8, 16, 24):  # how many tensors and fields there are, how long a name is
        path.write_bytes(whole[:place] + b"\xff" * 8 + whole[place + 8 :])
        assert shape_of_file(path) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"quantization_config": {}}'])
def test_a_model_that_does_not_tell_its_shape_has_none(tmp_path: Path, text: str) -> None:
    save(tmp_path)
    (tmp_path / "config.json").write_text(text)
    assert shape_of(tmp_path) is None
    save(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 7)
    assert shape_of(tmp_path) is None


@pytest.mark.parametrize(
    "field",
    [{"num_attention_heads": 0}, {"num_key_value_heads": [2, 4]}, {"vocab_size": float("inf")}],
)
def test_a_model_whose_layers_differ_or_that_is_broken_spoils_no_list(
    nowhere: Path, field: dict[str, object]
) -> None:
    save(nowhere / "odd")
    config = nowhere / "odd" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"head_dim": None} | field))
    caches = ["--cache-dir", str(nowhere / "cache"), "--data-dir", str(nowhere / "data")]
    told = CliRunner().invoke(app, ["models", str(nowhere), "--json", *caches])
    assert told.exit_code == 0, told.exception
    [odd] = json.loads(told.stdout)["at_hand"]
    assert odd["kv_token_bytes"] is None


def test_what_lies_on_the_machine_is_found_once(nowhere: Path) -> None:
    assert models_at_hand(nowhere / "cache", [nowhere / "data"]) == []
    file = nowhere / "data" / "small.gguf"
    file.parent.mkdir()
    file.write_bytes(b"GGUF" * 100)
    save(nowhere / "data" / "folder")
    (nowhere / "data" / ".being-made").mkdir()
    snapshot = nowhere / "hub" / "models--org--name" / "snapshots" / "abc"
    save(snapshot)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("abc")
    (nowhere / "hub" / "models--half--done").mkdir()
    found = models_at_hand(nowhere / "cache", [nowhere / "data"])
    assert [(one.model, one.source) for one in found] == [
        ("org/name", "hub cache"),
        (str(nowhere / "data" / "folder"), "folder"),
        (str(file), "file"),
    ]
    assert found[2].stored_bytes == 400
    converted = nowhere / "cache" / "small-0123"
    converted.mkdir(parents=True)
    (converted / "config.json").write_text((snapshot / "config.json").read_text())
    (converted / GGUF_LINK).symlink_to(file)
    shapes = {"model.embed_tokens.weight": {"shape": [100, 32]}}
    (converted / GGUF_INDEX).write_text(json.dumps(shapes))
    found = models_at_hand(nowhere / "cache", [nowhere / "data"])
    assert [(one.model, one.source) for one in found].count((str(file), "converted")) == 1
    assert (str(file), "file") not in [(one.model, one.source) for one in found]
    assert found[0].shape is not None
    file.unlink()
    assert str(file) not in [one.model for one in models_at_hand(nowhere / "cache")]


def test_only_what_fits_is_named() -> None:
    assert fitting(GIB // 2) == []
    names = [[model.name for model, _ in fitting(size * GIB)] for size in (3, 12, 200)]
    assert names[0] == names[2][: len(names[0])]
    assert len(names[0]) < len(names[1]) < len(names[2]) == len(KNOWN)
    assert all(kind == "bfloat16" for _, kind in fitting(200 * GIB))
    four_billion = KNOWN[3].shape
    assert [best_kind(four_billion, size * GIB) for size in (4, 5, 8, 12)] == [
        None,
        "int4",
        "int8",
        "bfloat16",
    ]


def test_the_command_lists_all_for_people_and_for_machines(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "memory_for_models", lambda _: 12 * GIB)
    save(nowhere / "mine")
    caches = ["--cache-dir", str(nowhere / "cache"), "--data-dir", str(nowhere / "data")]
    shown = CliRunner().invoke(app, ["models", str(nowhere / "mine"), *caches])
    assert shown.exit_code == 0
    assert str(nowhere / "mine") in shown.stdout
    assert "Qwen/Qwen3-8B" in shown.stdout
    told = CliRunner().invoke(app, ["models", str(nowhere / "mine"), "--json", *caches])
    document = json.loads(told.stdout)
    assert document["available_bytes"] == 12 * GIB
    [mine] = document["at_hand"]
    assert (mine["model"], mine["fits"]) == (str(nowhere / "mine"), "bfloat16")
    assert mine["bfloat16_bytes"] - mine["bfloat16_active_bytes"] == 2 * 3200
    assert "active" in shown.stdout
    assert mine["stored_bytes"] > mine["bfloat16_bytes"] - 2 * 3200
    assert [one["fits"] for one in document["would_fit"]][-1] == "int4"
    refused = CliRunner().invoke(app, ["models", str(nowhere / "none"), *caches])
    assert "there is no such file or folder" in str(refused.exception)


def test_a_first_start_names_what_is_stronger(monkeypatch: pytest.MonkeyPatch) -> None:
    for size, named in ((12 * GIB, "Qwen/Qwen3-0.6B (1.4 GiB)"), (GIB // 2, "--model a GGUF file")):
        monkeypatch.setattr(command, "memory_for_models", lambda _, size=size: size)
        line = stronger_models(Settings())
        assert named in line
        assert "\n" not in line
    assert DEFAULT_MODEL not in [model.name for model in KNOWN]
