"""Pictures in a service: over all APIs, as `transformers` has it, and found again."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import openai
import psutil
import pytest
import torch
from transformers import PreTrainedModel

from app.pictures.processing import Processor
from bench.common.service import Service, running_service
from bench.pictures.hostile import drawn, file_of
from tests.app.pictures.making import save_processor
from tests.end_to_end.program import chat
from tests.engine.pictures.seeing_models import seeing_model

QUESTION = " ".join(f"w{20 + number}" for number in range(30))
OTHER = " ".join(f"w{60 + number}" for number in range(20))
TOKENS = 6


@dataclass
class Seeing:
    """A service of a tiny model that sees."""

    service: Service
    folder: Path
    model: PreTrainedModel
    processor: Processor

    def says(self, seed: int, question: str) -> str:
        """What `transformers` makes of a picture and a question about it."""
        tokenizer, processor = self.processor._tokenizer, self.processor._processor
        content = [{"type": "image"}, {"type": "text", "text": question}]
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
        )
        made = processor(
            images=[drawn(seed)], text=[text], return_tensors="pt", add_special_tokens=False
        )
        inputs = {name: made[name] for name in made if name not in ("rows", "cols")}
        with torch.inference_mode():
            found = self.model.generate(**inputs, max_new_tokens=TOKENS, do_sample=False)
        said = found[0, made["input_ids"].shape[1] :]
        return " ".join(tokenizer.decode(said, skip_special_tokens=True).split())

    @property
    def name(self) -> str:
        return self.folder.name

    def openai(self, key: str) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.service.url}/v1", api_key=key, max_retries=0)

    def anthropic(self, key: str) -> anthropic.Anthropic:
        return anthropic.Anthropic(base_url=self.service.url, api_key=key, max_retries=0)


@pytest.fixture(
    scope="module",
    params=[
        "smolvlm",
        *(pytest.param(one, marks=pytest.mark.exhaustive) for one in ("gemma3", "qwen3_vl")),
    ],
)
def seeing(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Seeing]:
    folder = tmp_path_factory.mktemp("model")
    model = seeing_model(request.param, folder)
    save_processor(request.param, folder)
    options = ["--model", str(folder), "--dtype", "float32", "--block-size", "4"]
    with running_service([*options, "--rebuild-seconds", "600"]) as service:
        yield Seeing(service, folder, model, Processor(folder))


def words_of(text: str) -> str:
    """A text with a space between its words, and no other."""
    return " ".join(text.split())


def url_of(seed: int) -> str:
    return f"data:image/png;base64,{base64.b64encode(file_of(drawn(seed))).decode()}"


def asked(seed: int, question: str = QUESTION) -> list[dict[str, Any]]:
    content = [
        {"type": "input_image", "image_url": url_of(seed)},
        {"type": "input_text", "text": question},
    ]
    return [{"role": "user", "content": content}]


def test_every_api_answers_as_transformers_does(seeing: Seeing) -> None:
    key = seeing.service.create_tenant("apis")
    expected = seeing.says(1, QUESTION)
    client = seeing.openai(key)
    said: Any = client.responses.create(
        model=seeing.name, input=asked(1), temperature=0, max_output_tokens=TOKENS
    )
    assert words_of(said.output_text) == expected
    parts = [
        {"type": "image_url", "image_url": {"url": url_of(1)}},
        {"type": "text", "text": QUESTION},
    ]
    completion: Any = client.chat.completions.create(
        model=seeing.name,
        messages=[{"role": "user", "content": parts}],  # type: ignore[list-item]
        temperature=0,
        max_tokens=TOKENS,
    )
    assert words_of(completion.choices[0].message.content) == expected
    assert completion.usage.prompt_tokens == said.usage.input_tokens
    assert completion.usage.prompt_tokens_details.cached_tokens >= said.usage.input_tokens - 4
    data = base64.b64encode(file_of(drawn(1))).decode()
    source = {"type": "base64", "media_type": "image/png", "data": data}
    blocks = [{"type": "image", "source": source}, {"type": "text", "text": QUESTION}]
    message: Any = seeing.anthropic(key).messages.create(
        model=seeing.name,
        messages=[{"role": "user", "content": blocks}],  # type: ignore[typeddict-item]
        max_tokens=TOKENS,
        extra_body={"temperature": 0},
    )
    assert words_of(message.content[0].text) == expected


def test_another_question_about_a_picture_finds_it_and_another_picture_does_not(
    seeing: Seeing,
) -> None:
    client = seeing.openai(seeing.service.create_tenant("again"))
    cached = []
    for seed, question in ((2, QUESTION), (2, OTHER), (3, QUESTION)):
        said: Any = client.responses.create(
            model=seeing.name, input=asked(seed, question), temperature=0, max_output_tokens=TOKENS
        )
        assert words_of(said.output_text) == seeing.says(seed, question)
        cached.append(said.usage.input_tokens_details.cached_tokens)
    assert cached[0] == 0
    assert cached[1] > cached[2]


def test_an_uploaded_picture_is_the_same_as_one_that_is_sent(seeing: Seeing) -> None:
    client = seeing.openai(seeing.service.create_tenant("files"))
    made = client.files.create(file=("a.png", file_of(drawn(7))), purpose="vision")
    assert client.files.content(made.id).read() == file_of(drawn(7))
    content = [{"type": "input_image", "file_id": made.id}, asked(7)[0]["content"][1]]
    cached = []
    by_id: list[dict[str, Any]] = [{"role": "user", "content": content}]
    for said in (by_id, asked(7)):
        answer: Any = client.responses.create(
            model=seeing.name,
            input=said,  # type: ignore[arg-type]
            temperature=0,
            max_output_tokens=TOKENS,
        )
        assert words_of(answer.output_text) == seeing.says(7, QUESTION)
        cached.append(answer.usage.input_tokens_details.cached_tokens)
    assert cached[0] == 0
    assert cached[1] >= answer.usage.input_tokens - 4
    with pytest.raises(openai.BadRequestError, match="is none of PNG") as refused:
        client.files.create(file=("a.png", b"<svg/>"), purpose="vision")
    assert (refused.value.code, refused.value.param) == ("invalid_image", "file")
    theirs = seeing.openai(seeing.service.create_tenant("strangers"))
    with pytest.raises(openai.NotFoundError):
        theirs.files.content(made.id)


def test_another_tenants_picture_is_not_found(seeing: Seeing) -> None:
    for name in ("one", "other"):
        client = seeing.openai(seeing.service.create_tenant(name))
        said: Any = client.responses.create(
            model=seeing.name, input=asked(4), temperature=0, max_output_tokens=TOKENS
        )
        assert said.usage.input_tokens_details.cached_tokens == 0


def test_a_stream_about_a_picture_goes_on_behind_a_killed_engine(seeing: Seeing) -> None:
    client = seeing.openai(seeing.service.create_tenant("killed"))
    text, status = "", ""
    events: Any = client.responses.create(
        model=seeing.name,
        input=asked(5),
        temperature=0,
        max_output_tokens=300,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    for number, event in enumerate(events):
        if event.type == "response.output_text.delta":
            text += event.delta
        status = event.type
        if number == 9:
            (engine,) = [
                one
                for one in psutil.Process(seeing.service.pid).children(recursive=True)
                if "engine.assembly.process" in " ".join(one.cmdline())
            ]
            engine.kill()
    assert status == "response.incomplete"
    undisturbed: Any = client.responses.create(
        model=seeing.name,
        input=asked(5),
        temperature=0,
        max_output_tokens=300,
        extra_body={"ignore_eos": True},
    )
    assert text == undisturbed.output_text


def test_the_chat_in_the_terminal_shows_pictures(seeing: Seeing, tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(file_of(drawn(6)))
    key = seeing.service.create_tenant("terminal")
    options = ["--image", str(file), "--temperature", "0"]
    said = chat(seeing.service.url, key, f"{QUESTION}\n", *options)
    assert said.returncode == 0, said.stderr
    assert words_of(said.stdout).startswith(seeing.says(6, QUESTION))
    (tmp_path / "b.txt").write_text("no picture")
    refused = chat(seeing.service.url, key, "w20\n", "--image", str(tmp_path / "b.txt"))
    assert refused.returncode == 1
    assert "is named like no picture" in refused.stderr
