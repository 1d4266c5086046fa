"""Models of experts for `bench experts`: every server is given the same weights."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import gguf
import pytest
import torch
from gguf import GGUFReader
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench.experts import experts
from bench.experts.experts import FIGURES, _Case, _Model, _worst
from bench.experts.gguf_file import write_gguf
from bench.experts.load import STREAMS, Streams, running_modules
from bench.experts.modules import Question
from bench.experts.reads import step_bytes
from bench.experts.shapes import SHAPES, Shape, write_folder
from bench.peers.peer import Peer, filled_in, read_peers
from engine.config import EngineConfig
from engine.model.load import load_model
from engine.model.weights import DEFAULT_MODEL, resolve_model

SMALL = {
    name: replace(
        shape,
        hidden_size=64,
        num_heads=4,
        num_kv_heads=min(4, shape.num_kv_heads // 4),
        num_experts=4,
        used_experts=2,
        expert_size=32,
        others={**shape.others, "initializer_range": 0.02},
    )
    for name, shape in SHAPES.items()
}


def made(name: str, folder: Path) -> Path:
    write_folder(folder, SMALL[name], 2, resolve_model(DEFAULT_MODEL))
    return folder


def in_file(path: Path) -> dict[str, Tensor]:
    return {
        tensor.name: torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type))
        for tensor in GGUFReader(path).tensors
    }


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a tokenizer of few words: one of 49 thousand takes seconds to be read."""
    path = tmp_path_factory.mktemp("vocabulary") / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(["a", "b", "ab"])
    writer.add_chat_template("{{ messages }}")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("name", SMALL)
def test_a_folder_is_a_model_that_the_engine_fuses(name: str, tmp_path: Path) -> None:
    folder = made(name, tmp_path)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        logits = model(torch.tensor([[5, 6, 7, 8]])).logits
    assert 0 < logits.std() < 10
    engine = load_model(
        EngineConfig(model_path=str(folder), device="cpu", dtype="float32", threads=1)
    )
    assert engine.weights.is_fused


@pytest.mark.parametrize("name", SMALL)
def test_a_file_holds_the_folders_weights_as_llama_cpp_reads_them(
    name: str, tmp_path: Path, vocabulary: Path
) -> None:
    folder, path = made(name, tmp_path), tmp_path / "model.gguf"
    write_gguf(folder, path, "bf16", vocabulary)
    found = in_file(path)
    layer = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).model.layers[1]
    experts = (layer.block_sparse_moe if name == "granite" else layer.mlp).experts
    gates, ups = experts.gate_up_proj.detach().chunk(2, dim=1)
    torch.testing.assert_close(found["blk.1.ffn_gate_exps.weight"], gates)
    torch.testing.assert_close(found["blk.1.ffn_up_exps.weight"], ups)
    queries = layer.self_attn.q_proj.weight.detach()
    if name == "granite":  # a head's halves, which are rotated together, become neighbours
        queries = torch.stack(queries.view(4, 2, 8, 64).unbind(1), 2).reshape(64, 64)
    torch.testing.assert_close(found["blk.1.attn_q.weight"], queries)
    write_gguf(folder, path, "int8", vocabulary)
    rounded = in_file(path)["blk.1.ffn_up_exps.weight"]
    assert 0 < (rounded - ups).norm() / ups.norm() < 0.01


def test_a_file_speaks_with_the_tokenizer_of_another(tmp_path: Path, vocabulary: Path) -> None:
    folder, path = made("olmoe", tmp_path), tmp_path / "model.gguf"
    write_gguf(folder, path, "int8", vocabulary)
    fields = GGUFReader(path).fields
    assert fields["tokenizer.ggml.tokens"].contents() == ["a", "b", "ab"]
    assert fields["tokenizer.ggml.pre"].contents() == "smollm"
    assert fields["tokenizer.chat_template"].contents() == "{{ messages }}"


def test_the_example_of_peers_takes_what_it_is_given() -> None:
    example = Path(experts.__file__).with_name("peers.example.toml")
    words = {"{folder}": "/made", "{gguf}": "", "{port}": "1234", "{weights}": "int8"}
    for peer in read_peers(example):
        filled = filled_in(peer, words)
        assert filled.base_url == "http://127.0.0.1:1234"
        assert "/made-openvino-int8" in filled.command[-1]
        assert not re.search(r"\{\w+\}", " ".join(filled.command))


def test_a_steps_bytes_are_those_of_the_experts_used_and_all_else() -> None:
    shape = Shape("olmoe", 1, 8, 2, 1, num_experts=4, used_experts=2, expert_size=16, others={})
    given = {"num_layers": 3, "vocab_size": 10, "weights": "bf16"}
    without = step_bytes(shape, **given, distinct_experts=0, kv_tokens=0)
    assert without == 3 * (2 * (2 * 64 + 2 * 32) + 4 * 32) + 2 * 80
    an_expert = 3 * 3 * 8 * 16 * 2
    assert (
        step_bytes(shape, **given, distinct_experts=2.5, kv_tokens=0) == without + 2.5 * an_expert
    )
    a_token = 3 * 2 * 4 * 2
    assert step_bytes(shape, **given, distinct_experts=0, kv_tokens=7) == without + 7 * a_token


def test_the_models_own_modules_answer_and_count_their_experts(tmp_path: Path) -> None:
    folder = made("granite", tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    load = Streams(30, 4, lambda text: len(tokenizer(text)["input_ids"]))
    texts = load.texts(8, "a")
    assert len({*texts, *load.texts(8, "b")}) == 16
    assert {load.count(text) for text in texts} == {30}
    with running_modules(folder) as modules:
        answer = modules.ask(Question(texts, 4))
        counted = modules.distinct_experts(load)
    assert sorted(answer.seconds) == answer.seconds
    assert len(answer.seconds) == 4
    assert counted[1] == 2
    assert 2 < counted[8] <= 4


def test_ratios_are_over_the_best_peer_and_the_worst_case_counts(tmp_path: Path) -> None:
    def seen(rate: float, ttft: float) -> list[dict[str, float]]:
        found = {f"output_tokens_per_s_{at}": rate * at for at in STREAMS}
        found |= {f"itl_ms_{at}": 1000 / rate for at in STREAMS}
        return [found | {f"ttft_ms_{at}": ttft for at in STREAMS} | {"foreign_load_percent": 1.0}]

    model = _Model(SHAPES["olmoe"], 1, tmp_path, 100)
    rounds = {"partywall": seen(30, 50), "slow": seen(10, 100), "late": seen(20, 500)}
    figures = _Case("olmoe_int8", model, "int8", Streams(8, 2, len), rounds).figures()
    assert figures["tokens_per_s_ratio_8_olmoe_int8"] == pytest.approx(1.5)
    assert figures["ttft_ratio_olmoe_int8"] == pytest.approx(0.5)
    assert figures["itl_ms_olmoe_int8_8_late"] == pytest.approx(50)
    worst = _worst(figures | {"tokens_per_s_ratio_8_x_bf16": 0.9, "ttft_ratio_x_bf16": 0.7})
    assert worst == pytest.approx(
        {"tokens_per_s_ratio_1": 1.5, "tokens_per_s_ratio_8": 0.9, "ttft_ratio": 0.7}
    )
    assert worst.keys() <= FIGURES.keys()


def test_a_peers_words_are_filled_in() -> None:
    command = [sys.executable, "{folder}/x", "--port={port}", '{"json": 1}']
    peer = Peer(name="a", url="http://localhost:{port}/v1", model="{folder}", command=command)
    found = filled_in(peer, {"{folder}": "/m", "{port}": "81"})
    assert found.command == [sys.executable, "/m/x", "--port=81", '{"json": 1}']
    assert (found.url, found.model) == ("http://localhost:81/v1", "/m")
