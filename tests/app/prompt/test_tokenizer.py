"""A tokenizer that cannot be loaded is told in a line, whatever the library says."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.prompt.tokenizer import load_tokenizer
from engine.model.weights import ModelUnavailable


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
