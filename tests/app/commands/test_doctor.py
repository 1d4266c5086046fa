"""What is wrong with a machine is said, with what to do about it, and nothing else is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec import structs
from typer.testing import CliRunner

from app.commands import findings
from app.commands.findings import StoreState, findings_of
from app.commands.program import app
from app.settings import Settings
from engine.model.kernel_paths import Choice
from engine.model.machine import Machine, _offered

GOOD = Machine(
    processor="A Processor",
    offered_level="avx512",
    level="avx512",
    logical_processors=8,
    physical_cores=4,
    cpu_quota=None,
    library_problem="",
    compiler="/usr/bin/cc",
    choice=Choice({"bfloat16": "words", "int8": "words", "attention": "words"}, "small", 4),
    is_choice_kept=True,
    memory_bytes=16 << 30,
    available_bytes=8 << 30,
    gpu=None,
)
NEAR = StoreState("redis://here:6379", 0.3, "")


def settings_in(folder: Path, **fields: object) -> Settings:
    given = {"cache_dir": folder, "data_dir": folder} | fields
    return Settings(**given)  # type: ignore[arg-type]


def found(folder: Path, store: StoreState = NEAR, **fields: object) -> list[findings.Finding]:
    """On a good machine, but for `fields`."""
    return findings_of(structs.replace(GOOD, **fields), store, settings_in(folder))


def test_a_good_machine_has_nothing_wrong(tmp_path: Path) -> None:
    assert found(tmp_path) == []
    assert found(tmp_path / "not" / "there" / "yet") == []


@pytest.mark.parametrize(
    ("fields", "what", "remedy"),
    [
        ({"library_problem": "x.so cannot be used: no"}, "x.so cannot be used: no", "the package"),
        ({"library_problem": "none", "compiler": None}, "torch", "Install a C compiler, then"),
        ({"offered_level": "amx"}, "has amx, but avx512 is used", "kernel"),
        ({"offered_level": "plain", "level": "plain"}, "no code for this processor", "AVX2"),
        ({"available_bytes": 500 << 20}, "500 MiB of memory", "--kv-memory"),
    ],
)
def test_what_makes_it_slow_or_small_is_a_warning(
    tmp_path: Path, fields: dict[str, object], what: str, remedy: str
) -> None:
    (finding,) = found(tmp_path, **fields)
    assert what in finding.what
    assert remedy in finding.remedy
    assert not finding.is_grave


def test_more_threads_than_there_is_time_for_are_a_warning(tmp_path: Path) -> None:
    asked = settings_in(tmp_path, threads=4)
    assert findings_of(GOOD, NEAR, asked) == []
    (finding,) = findings_of(structs.replace(GOOD, cpu_quota=2), NEAR, asked)
    assert "4 threads" in finding.what
    assert "2 processors" in finding.what


def test_a_kv_cache_that_does_not_fit_is_a_warning(tmp_path: Path) -> None:
    (finding,) = findings_of(GOOD, NEAR, settings_in(tmp_path, kv_memory="9GiB"))
    assert "KV cache 9216 MiB" in finding.what


def test_the_size_of_given_weights_counts(tmp_path: Path) -> None:
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(9 << 30)
    (finding,) = findings_of(GOOD, NEAR, settings_in(tmp_path, model=str(tmp_path)))
    assert "weights 9216 MiB" in finding.what
    one_file = settings_in(tmp_path, model=str(tmp_path / "model.safetensors"))
    (finding,) = findings_of(GOOD, NEAR, one_file)
    assert "weights 9216 MiB" in finding.what
    with_draft = settings_in(tmp_path, speculation="draft", draft_model=str(tmp_path))
    (finding,) = findings_of(GOOD, NEAR, with_draft)
    assert "weights 9476 MiB" in finding.what


def test_a_store_that_does_not_answer_is_an_error_and_a_far_one_a_warning(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, StoreState("redis://gone", None, "no Redis at redis://gone"))
    assert finding.is_grave
    assert "no Redis at redis://gone" in finding.what
    (finding,) = found(tmp_path, StoreState("redis://far", 80.0, ""))
    assert not finding.is_grave
    assert "80.0 ms" in finding.what


def test_folders_that_cannot_be_written_are_errors(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    first, second = found(file / "below", available_bytes=0)[:2]
    assert first.is_grave
    assert "--cache-dir" in first.remedy
    assert second.is_grave
    assert "--data-dir" in second.remedy
    asked = settings_in(tmp_path, data_dir=file, redis_url="redis://here")
    assert findings_of(GOOD, NEAR, asked) == [], "Redis keeps what the folder would"


def test_the_level_that_a_processor_offers_is_told_by_its_flags() -> None:
    avx2 = {"avx2", "fma", "f16c", "sse2"}
    avx512 = avx2 | {"avx512f", "avx512dq", "avx512bw", "avx512vl"}
    assert _offered(set()) == "plain"
    assert _offered(avx2) == "avx2"
    assert _offered(avx512) == _offered(avx512 | {"amx_tile"}) == "avx512"
    assert _offered(avx512 | {"avx512_bf16", "amx_tile", "amx_bf16", "amx_int8"}) == "amx"


def run(*arguments: str, folder: Path, **variables: str) -> tuple[int, str]:
    options = ["--cache-dir", str(folder), "--data-dir", str(folder)]
    result = CliRunner(env={"COLUMNS": "200"} | variables).invoke(
        app, ["doctor", *options, *arguments]
    )
    return result.exit_code, result.output


def test_the_command_shows_this_machine(tmp_path: Path) -> None:
    status, text = run(folder=tmp_path)
    assert status == 0
    drafting = {"PARTYWALL_SPECULATION": "draft", "PARTYWALL_DRAFT_MODEL": "small"}
    assert run(folder=tmp_path, **drafting)[0] == 0
    assert "choice.paths.bfloat16" in text
    assert ["store.place", str(tmp_path)] in [line.split() for line in text.splitlines()]
    status, text = run("--json", folder=tmp_path)
    document = json.loads(text)
    assert document["is_choice_kept"] is False
    assert document["choice"]["threads"] >= 1
    assert list(tmp_path.iterdir()) == [], "a look changes nothing"


def test_the_command_fails_where_redis_does_not_answer(tmp_path: Path) -> None:
    url = "redis://:secret@127.0.0.1:1"
    status, text = run("--redis-url", url, folder=tmp_path)
    assert status == 1
    assert "error: no Redis at redis://***@127.0.0.1:1" in text
    assert "--redis-url" in text
    assert "secret" not in text
