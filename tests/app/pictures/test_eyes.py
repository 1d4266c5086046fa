"""Pictures are looked at as the model's own processor would, whatever files are among them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from app.pictures.decoding import decode
from app.pictures.eyes import Eyes
from app.pictures.picture import BadPicture
from app.pictures.processing import Processor, digest_of
from app.prompt.chat_template import ChatTemplate
from app.wire.functions import PLACE, Message, Picture
from app.workers import Workers
from bench.pictures.hostile import drawn, file_of
from tests.app.pictures.making import FAMILIES, save_processor
from tests.engine.pictures.seeing_models import IMAGE, seeing_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    seeing_model("smolvlm", folder)
    save_processor("smolvlm", folder)
    return folder


@pytest.fixture(scope="module")
def eyes(folder: Path) -> Iterator[Eyes]:
    eyes = Eyes(folder, most_pixels=1_000_000, seconds=60)
    yield eyes
    eyes.close()


@pytest.mark.parametrize("family", FAMILIES)
def test_as_many_tokens_stand_for_a_picture_as_its_tower_makes_rows(
    family: str, tmp_path: Path
) -> None:
    from engine.model.sight.families import split

    model = seeing_model(family, tmp_path)
    save_processor(family, tmp_path)
    _, tower = split(model)
    for width, height in ((40, 30), (16, 16), (17, 90)):
        look, inputs = Processor(tmp_path).look(drawn(1, width, height))
        seen = tower.see(inputs, list(look.token_ids))
        assert len(seen.values) == look.token_ids.count(IMAGE)


@pytest.mark.parametrize("family", FAMILIES)
async def test_prompts_are_those_that_its_processor_makes(family: str, tmp_path: Path) -> None:
    seeing_model(family, tmp_path)
    save_processor(family, tmp_path)
    processor = Processor(tmp_path)
    look, _ = processor.look(drawn())
    parts = [{"type": "text", "text": "w20"}, {"type": "image"}, {"type": "text", "text": "w21"}]
    text = processor._tokenizer.apply_chat_template(
        [{"role": "user", "content": parts}], tokenize=False, add_generation_prompt=True
    )
    made = processor._processor(
        images=[drawn()], text=[text], return_tensors="np", add_special_tokens=False
    )
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    template = ChatTemplate(tokenizer, Workers(), 4096, picture_token_id=IMAGE)
    shown = Picture(url="", token_ids=look.token_ids, digest=look.digest)
    said: Message = {"role": "user", "content": f"w20{PLACE}w21", "pictures": [shown]}
    assert await template.prompt_ids("acme", [said], "input") == made["input_ids"][0].tolist()


async def test_what_is_looked_at_is_what_the_model_is_given(eyes: Eyes, folder: Path) -> None:
    data = file_of(drawn())
    look = await eyes.look("a", data)
    header, inputs = await eyes.inputs("a", data)
    assert (look.width, look.height) == (40, 30)
    assert len(inputs) == look.num_input_bytes
    own, expected = Processor(folder).look(drawn())
    assert own == look
    assert inputs == b"".join(array.tobytes() for array in expected.values())
    assert [one.name for one in header.inputs] == list(expected)


async def test_the_same_pixels_have_one_digest_whatever_file_they_are_in(eyes: Eyes) -> None:
    png, gif, other = file_of(drawn()), file_of(drawn(), "WEBP", lossless=True), drawn(1)
    digests = [(await eyes.look("a", data)).digest for data in (png, gif, file_of(other))]
    assert digests[0] == digests[1] != digests[2]


async def test_low_detail_shrinks(eyes: Eyes) -> None:
    data = file_of(drawn(0, 900, 600))
    low, high = await eyes.look("a", data, "low"), await eyes.look("a", data, "high")
    assert (low.width, low.height) == (512, 341)
    assert (high.width, high.height) == (900, 600)


async def test_a_process_that_is_killed_is_started_again(eyes: Eyes) -> None:
    data = file_of(drawn())
    before = await eyes.look("a", data)
    assert eyes.pid is not None
    os.kill(eyes.pid, signal.SIGKILL)
    await asyncio.sleep(0.1)
    assert await eyes.look("a", data) == before


@pytest.mark.exhaustive
async def test_who_takes_too_long_is_refused_and_the_next_is_not(folder: Path) -> None:
    eyes = Eyes(folder, most_pixels=100_000_000, seconds=60)
    await eyes.open()
    eyes._seconds = 0.05
    with pytest.raises(BadPicture, match="takes too long"):
        await eyes.look("a", file_of(drawn(0, 3000, 3000)))
    eyes._seconds = 60
    assert (await eyes.look("a", file_of(drawn()))).width == 40
    eyes.close()


@pytest.mark.exhaustive
async def test_a_folder_without_a_processor_is_told_of(tmp_path: Path) -> None:
    seeing_model("llava", tmp_path)
    eyes = Eyes(tmp_path, most_pixels=1_000_000, seconds=60)
    with pytest.raises(BadPicture, match="processor cannot be used"):
        await eyes.look("a", file_of(drawn()))
    eyes.close()


def test_what_shines_through_is_white() -> None:
    image = drawn().convert("RGBA")
    image.putalpha(0)
    assert np.asarray(decode(file_of(image), "auto", 10_000)).min() == 255


def test_a_picture_that_a_camera_has_turned_is_upright() -> None:
    image = drawn()
    exif = image.getexif()
    exif[0x0112] = 6  # turned by a quarter
    found = decode(file_of(image, exif=exif), "auto", 10_000)
    assert found.size == (30, 40)
    assert np.array_equal(np.asarray(found), np.rot90(np.asarray(image), -1))


def test_sixteen_bits_are_shrunk_to_eight() -> None:
    from PIL import Image

    values = (np.arange(1200, dtype=np.uint16) * 50).reshape(30, 40)
    found = decode(file_of(Image.fromarray(values)), "auto", 10_000)
    assert np.array_equal(np.asarray(found)[..., 0], values >> 8)


def test_cmyk_and_palettes_are_colours() -> None:
    for mode, kind in (("CMYK", "JPEG"), ("P", "PNG"), ("L", "PNG"), ("1", "PNG"), ("LA", "PNG")):
        found = decode(file_of(drawn().convert(mode), kind), "auto", 10_000)
        assert (found.mode, found.size) == ("RGB", (40, 30))


def test_equal_inputs_of_other_shapes_differ() -> None:
    ones = np.ones((2, 6))
    assert digest_of({"a": ones}) != digest_of({"a": ones.reshape(3, 4)})
