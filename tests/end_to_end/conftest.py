"""One running service with the real model, started the way a user starts it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer

from bench.common.service import Service, running_service
from engine.model.weights import DEFAULT_MODEL, resolve_model
from tests.bench.conftest import save_model
from tests.effort import scaled

SYSTEM = "You are a terse assistant. Answer in one short sentence, and never apologise. " * 4
BLOCK_SIZE = 4
KV_BLOCKS = 120
FP32_BLOCK_BYTES = 2 * 30 * 3 * BLOCK_SIZE * 64 * 4


@pytest.fixture(scope="session")
def model_folder() -> Path:
    return resolve_model(DEFAULT_MODEL)


@pytest.fixture(scope="session")
def tokenizer(model_folder: Path) -> Tokenizer:
    return AutoTokenizer.from_pretrained(model_folder)


@pytest.fixture(scope="session")
def reference(model_folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights behind the same tokenizer, where it is all one what is said."""
    return save_model(tmp_path_factory.mktemp("model") / "tiny", hidden_size=32, num_layers=1)


@pytest.fixture(
    scope="session", params=["lookup", pytest.param("off", marks=pytest.mark.exhaustive)]
)
def service(request: pytest.FixtureRequest) -> Iterator[Service]:
    """In fp32, with so few and small blocks that a crowd of requests preempts each other; with and
    without guesses at what comes next.

    Nobody comes back to an abandoned stream here, so it is given up soon. An engine that was killed
    is waited for however long its start takes, where other programs keep the machine busy.
    """
    options = ["--dtype", "float32", "--block-size", str(BLOCK_SIZE)]
    options += ["--resume-grace-seconds", "0.5", "--rebuild-seconds", "600"]
    options += ["--kv-memory", str(KV_BLOCKS * FP32_BLOCK_BYTES)]
    options += ["--speculation", request.param]
    with running_service(options) as service:
        yield service


@pytest.fixture(scope="session")
def api_key(service: Service) -> str:
    return service.create_tenant("acme", SYSTEM)


@pytest.fixture(scope="session")
def questions() -> list[str]:
    """The same wherever the tests run."""
    count = scaled(8, most=20)
    topics = ["rivers", "bread", "chess", "rust", "whales", "sleep", "maps", "glass", "tea", "moss"]
    shapes = ["Explain {} to a child in 3 steps.", "List 5 odd facts about {}, with dates."]
    return [shape.format(topic) for topic in topics for shape in shapes][:count]
