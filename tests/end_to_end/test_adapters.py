"""An adapter trained as the docs say, given to a tenant, and chatted with."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from openai import AsyncOpenAI, NotFoundError
from peft import PeftModel
from transformers import PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer

from bench.common.service import Service, running_service
from tests.end_to_end.test_docs import PROJECT, blocks
from tests.end_to_end.test_failures import engine_process

STEPS = 6
"""As many as change what is said."""
QUESTION = "What is the moon?"
MODEL = "smollm2-135m-instruct"
TOKENS = 24


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the script of the docs leaves."""
    folder = tmp_path_factory.mktemp("trained")
    (script,) = blocks("docs/adapters.md", "python")
    assert "\nSTEPS = 60\n" in script
    (folder / "rhyme.py").write_text(script.replace("\nSTEPS = 60\n", f"\nSTEPS = {STEPS}\n"))
    subprocess.run(
        [sys.executable, "rhyme.py"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(PROJECT)},
        check=True,
        timeout=240,
        capture_output=True,
    )
    return folder / "rhyme"


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    options = ["--dtype", "float32", "--kv-memory", "256MiB", "--rebuild-seconds", "600"]
    with running_service(options) as service:
        yield service


@pytest.fixture
async def clients(service: Service, trained: Path) -> list[AsyncOpenAI]:
    """Of a tenant with the adapter, and of one without."""
    keys = [service.create_tenant(name) for name in ("poets", "others")]
    names = ("adapter_config.json", "adapter_model.safetensors")
    files = {name: (trained / name).read_bytes() for name in names}
    async with service.operator() as operator:
        answer = await operator.put("/admin/tenants/poets/adapters/rhyme", files=files)
    assert answer.is_success, answer.text
    url = f"{service.url}/v1"
    return [AsyncOpenAI(base_url=url, api_key=key, max_retries=0) for key in keys]


def said_by(model: Any, tokenizer: Tokenizer) -> str:
    messages = [{"role": "user", "content": QUESTION}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    prompt = torch.tensor([ids])
    with torch.inference_mode():
        found = model.generate(input_ids=prompt, max_new_tokens=TOKENS, do_sample=False)
    return str(tokenizer.decode(found[0, prompt.shape[1] :], skip_special_tokens=True))


async def test_a_tenants_adapter_says_what_peft_says_through_the_engines_death(
    clients: list[AsyncOpenAI],
    service: Service,
    trained: Path,
    reference: PreTrainedModel,
    tokenizer: Tokenizer,
) -> None:
    poets, others = clients
    plain = said_by(reference, tokenizer)
    changed = PeftModel.from_pretrained(reference, str(trained))
    try:
        rhymed = said_by(changed, tokenizer)
    finally:
        changed.unload()
    assert rhymed != plain
    options: Any = {
        "messages": [{"role": "user", "content": QUESTION}],
        "temperature": 0,
        "max_tokens": TOKENS,
    }
    lengths = []
    for client, name, expected in (
        (poets, f"{MODEL}:rhyme", rhymed),
        (poets, MODEL, plain),
        (others, MODEL, plain),
    ):
        answer = await client.chat.completions.create(model=name, **options)
        assert answer.choices[0].message.content == expected
        assert answer.usage is not None
        lengths.append(answer.usage.completion_tokens)
    with pytest.raises(NotFoundError):
        await others.chat.completions.create(model=f"{MODEL}:rhyme", **options)
    stream = await poets.chat.completions.create(model=f"{MODEL}:rhyme", stream=True, **options)
    text, is_killed = "", False
    async for chunk in stream:
        text += chunk.choices[0].delta.content or "" if chunk.choices else ""
        if text and not is_killed:
            is_killed = True
            engine_process(service).kill()
    assert text == rhymed
    async with service.operator() as operator:
        told = (await operator.get("/admin/tenants/poets/adapters/rhyme")).json()["engine"]
        assert (told["where"], told["uses"]) == (["device", "host"], 1)
        assert told["bytes"] > (trained / "adapter_model.safetensors").stat().st_size / 2
        assert told["fetch_seconds"] > 0 < told["load_seconds"]
        for _ in range(100):
            used = (await operator.get("/admin/tenants/poets/usage/adapters")).json()["usage"]
            if used and used[0]["requests"] == 2:
                break
            await asyncio.sleep(0.1)
        (day,) = used
        assert (day["adapter"], day["output_tokens"]) == ("rhyme", 2 * lengths[0])
        others_used = (await operator.get("/admin/tenants/others/usage/adapters")).json()
        assert others_used["usage"] == []
