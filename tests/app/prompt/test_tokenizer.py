"""A tokenizer that cannot be loaded is told in a line, whatever the library says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.prompt.tokenizer import load_tokenizer
from engine.model.weights import ModelUnavailable
from tests.app.conftest import byte_tokenizer


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"tokenizer_config.json": "{"},
        {"config.json": "{", "tokenizer.json": "{}"},
        {
            "tokenizer_config.json": '{"tokenizer_class": "PreTrainedTokenizerFast"}',
            "tokenizer.json": "{}",
        },
    ],
)
def test_a_folder_without_a_tokenizer_that_can_be_read_says_so(
    tmp_path: Path, files: dict[str, str]
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ModelUnavailable) as caught:
        load_tokenizer(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path} has no tokenizer that can be read: ")
    assert "\n" not in str(caught.value)


def test_the_template_of_a_processor_is_that_of_its_model(tmp_path: Path) -> None:
    byte_tokenizer().save_pretrained(tmp_path)
    assert load_tokenizer(tmp_path).chat_template == byte_tokenizer().chat_template
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "with pictures"}))
    assert load_tokenizer(tmp_path).chat_template == "with pictures"
