"""A tiny model that sees, served as a user serves it, says of pictures what `generate()` says."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image
from transformers import PreTrainedModel

from app.pictures.processing import Processor
from app.prompt.tokenizer import load_tokenizer
from bench.common.service import Service, running_service
from tests.app.pictures.making import drawn, file_of, save_processor
from tests.engine.pictures.seeing_models import Shown, says, seeing_model

pytestmark = pytest.mark.exhaustive
FAMILY = "smolvlm"
TOKENS = 12
TEMPLATE = (
    "<s> {% for message in messages %}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}{{ '<image>' }}"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %} w8 {% endfor %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("seeing")


@pytest.fixture(scope="module")
def model(folder: Path) -> PreTrainedModel:
    made = seeing_model(FAMILY, folder)
    save_processor(FAMILY, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return made


@pytest.fixture(scope="module")
def service(model: PreTrainedModel, folder: Path) -> Iterator[Service]:
    del model  # it is in the folder by now
    options = ["--model", str(folder), "--dtype", "float32", "--kv-memory", "64MiB"]
    options += ["--rebuild-seconds", "600"]
    with running_service(options) as service:
        yield service


def image_part(image: Image.Image) -> dict[str, Any]:
    data = base64.b64encode(file_of(image)).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def shown(folder: Path, image: Image.Image) -> Shown:
    look, inputs = Processor(folder).look(image)
    return Shown(list(look.token_ids), inputs)


def ask(client: httpx.Client, model: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
    body = {"model": model, "messages": messages, "max_tokens": TOKENS, "temperature": 0}
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_what_is_said_of_pictures_is_what_generate_says(
    service: Service, model: PreTrainedModel, folder: Path
) -> None:
    tokenizer = load_tokenizer(folder)
    images = [drawn(1), drawn(2, 17, 90)]
    content = [
        {"type": "text", "text": "w10 "},
        image_part(images[0]),
        {"type": "text", "text": " w11 "},
        image_part(images[1]),
        {"type": "text", "text": " w12"},
    ]
    parts: list[Any] = [1, 10, shown(folder, images[0]), 11, shown(folder, images[1]), 12, 8]
    expected = tokenizer.decode(says(model, FAMILY, parts, TOKENS), skip_special_tokens=True)
    with service.client(service.create_tenant("acme"), timeout=120) as client:
        first = ask(client, folder.name, [{"role": "user", "content": content}])
        again = ask(client, folder.name, [{"role": "user", "content": content}])
    with service.client(service.create_tenant("umbra"), timeout=120) as client:
        other = ask(client, folder.name, [{"role": "user", "content": content}])
    for answer in (first, again, other):
        assert answer["choices"][0]["message"]["content"].split() == expected.split()
        assert answer["usage"]["prompt_tokens"] == sum(
            len(one.token_ids) if isinstance(one, Shown) else 1 for one in parts
        )
    cached = [
        one["usage"]["prompt_tokens_details"]["cached_tokens"] for one in (first, again, other)
    ]
    assert cached[0] == cached[2] == 0 < cached[1]
