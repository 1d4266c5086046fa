from __future__ import annotations

import base64
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import msgspec
import pytest
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from app.pictures.picture import BadPicture, Detail, Look
from engine.api import EngineRequest, PictureHeader, PictureInput
from tests.app.conftest import MODEL, World, byte_tokenizer
from tests.app.scripted_engine import ScriptedEngine

IMAGE = "<image>"
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ '<image>' }}{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}{{ '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
HELLO = b"3 hello"
CAT = b"5 a cat"
"""Pictures, as these eyes see them: of so many tokens."""
THREE, FIVE = f"<|mark|>{IMAGE * 3}<|mark|>", f"<|mark|>{IMAGE * 5}<|mark|>"
"""And what stands for them in prompts."""


async def respond(world: World, **fields: Any) -> Any:
    return await world.client().responses.create(**{"model": MODEL, **fields})


async def uploaded(
    world: World, data: bytes = HELLO, tenant: str = "acme", purpose: Any = "vision"
) -> str:
    """The id of a file."""
    return (await world.client(tenant).files.create(file=data, purpose=purpose)).id


class ScriptedEyes:
    """See how many tokens a picture says that it has, between two marks."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._image = int(tokenizer.convert_tokens_to_ids(IMAGE))
        self._mark = int(tokenizer.convert_tokens_to_ids("<|mark|>"))
        self.looks: list[tuple[bytes, Detail]] = []

    async def look(self, tenant: str, data: bytes, detail: Detail = "auto") -> Look:
        del tenant
        self.looks.append((data, detail))
        if not data[:1].isdigit():
            raise BadPicture("is none of PNG")
        ids = (self._mark, *[self._image] * int(data[:1]), self._mark)
        digest = blake2b(data + detail.encode()).digest()
        return Look(ids, digest, 10, 10, len(data))

    async def inputs(
        self, tenant: str, data: bytes, detail: Detail = "auto"
    ) -> tuple[PictureHeader, bytes]:
        del tenant, detail
        return PictureHeader((PictureInput("pixel_values", "uint8", (len(data),)),)), data


def seeing_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([IMAGE, "<|mark|>"], special_tokens=True)
    tokenizer.chat_template = TEMPLATE
    return tokenizer


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerBase:
    return seeing_tokenizer()


@pytest.fixture
def engine(tokenizer: PreTrainedTokenizerBase) -> ScriptedEngine:
    seeing = ScriptedEngine(tokenizer)
    seeing.picture_token_id = int(tokenizer.convert_tokens_to_ids(IMAGE))
    return seeing


@pytest.fixture
def eyes(tokenizer: PreTrainedTokenizerBase) -> ScriptedEyes:
    return ScriptedEyes(tokenizer)


def url(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def input_image(data: bytes, **fields: Any) -> dict[str, Any]:
    return {"type": "input_image", "image_url": url(data), **fields}


def input_text(text: str) -> dict[str, Any]:
    return {"type": "input_text", "text": text}


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def asked(world: World) -> EngineRequest:
    """What the engine was asked last."""
    return world.engine.requests[-1]


def prompt(world: World, request: EngineRequest | None = None) -> str:
    """It as text, with pictures as their tokens."""
    request = request or asked(world)
    return str(world.engine.tokenizer.decode(request.prompt))


def shown(world: World, request: EngineRequest | None = None) -> list[str]:
    """What the prompt has in the places of its pictures."""
    request = request or asked(world)
    decode = world.engine.tokenizer.decode
    return [str(decode(request.prompt[one.start : one.end])) for one in request.pictures]


def brought(world: World) -> list[bytes]:
    """The arrays of the pictures that the engine was brought for its last request."""
    return list(map(_arrays, world.engine.brought[-len(asked(world).pictures) :]))


def _arrays(picture: tuple[bytes, Sequence[bytes]]) -> bytes:
    header, *pieces = picture[1]
    [array] = msgspec.json.decode(header, type=PictureHeader).inputs
    data = b"".join(pieces)
    assert array.shape == (len(data),)
    return data
