from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from engine.model.weights import DEFAULT_MODEL, resolve_model
from tests.bench.stand_in import Peer


@pytest.fixture(autouse=True)
def _nobody_asks_how_busy_the_machine_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """That takes a second."""
    monkeypatch.setattr("bench.__main__.warn_if_busy", lambda: 0.0)


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    server = peer.server()
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    for _ in range(1000):
        if server.started:
            break
        thread.join(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    peer.url = f"http://127.0.0.1:{port}"
    yield peer
    server.should_exit = True
    thread.join(10)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of random weights, with a real tokenizer."""
    return save_model(tmp_path_factory.mktemp("model") / "tiny", hidden_size=32, num_layers=1)


@pytest.fixture(scope="session")
def slow_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that takes longer for a token than the service and a client do."""
    return save_model(tmp_path_factory.mktemp("model") / "slow", hidden_size=512, num_layers=8)


def save_model(folder: Path, hidden_size: int, num_layers: int, context: int = 1024) -> Path:
    tokenizer = AutoTokenizer.from_pretrained(resolve_model(DEFAULT_MODEL))
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=context,
        eos_token_id=tokenizer.eos_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder
