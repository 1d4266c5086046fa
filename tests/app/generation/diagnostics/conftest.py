from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from transformers import PreTrainedTokenizerBase

from tests.app.conftest import byte_tokenizer
from tests.app.generation.diagnostics.asker import EFFORT_FIRST, Engine


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = EFFORT_FIRST
    return tokenizer


@pytest.fixture
async def engine(tokenizer: PreTrainedTokenizerBase) -> AsyncIterator[Engine]:
    engine = Engine(tokenizer)
    await engine.start()
    yield engine
    await engine.close()
    for core in engine.cores:
        core.scheduler.check()
