"""What computes is judged by what it is, and what is wrong comes with what to do about it."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from app.assembly.check import Check
from app.doctor.machine import check_machine
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
    available_bytes=8 << 30,
    gpu=None,
)


def wrong(machine: Machine = GOOD, **given: object) -> list[Check]:
    """All that is not as it should be."""
    settings = Settings(**given)  # type: ignore[arg-type]
    return [check for check in check_machine(machine, settings) if check.grade != "ok"]


def test_of_a_good_machine_every_part_is_told_and_none_is_wrong() -> None:
    checks = list(check_machine(GOOD, Settings()))
    parts = ["processor", "kernels", "threads", "GPU", "memory"]
    assert [check.part for check in checks] == parts
    assert {check.grade for check in checks} == {"ok"}
    assert "bfloat16 by words" in checks[1].what
    assert "kept from an earlier start" in checks[1].what


@pytest.mark.parametrize(
    ("fields", "part", "what", "remedy"),
    [
        ({"library_problem": "x.so is bad"}, "kernels", "x.so is bad", "the package"),
        ({"library_problem": "none", "compiler": None}, "kernels", "torch", "a C compiler, then"),
        ({"offered_level": "amx"}, "processor", "has amx, but avx512 is used", "kernel"),
        ({"offered_level": "plain", "level": "plain"}, "processor", "no code for this", "AVX2"),
        ({"available_bytes": 500 << 20}, "memory", "500 MiB of memory", "--kv-memory"),
    ],
)
def test_what_makes_it_slow_or_small_is_a_warning(
    fields: dict[str, object], part: str, what: str, remedy: str
) -> None:
    (check,) = wrong(structs.replace(GOOD, **fields))
    assert (check.part, check.grade) == (part, "warn")
    assert what in check.what
    assert remedy in check.remedy


def test_more_threads_than_there_is_time_for_are_a_warning() -> None:
    assert wrong(threads=4) == []
    (check,) = wrong(structs.replace(GOOD, cpu_quota=2), threads=4)
    assert "4 threads" in check.what
    assert "2 processors" in check.what


def test_a_gpu_that_is_asked_for_and_not_there_fails() -> None:
    (check,) = wrong(device="cuda")
    assert (check.part, check.grade) == ("GPU", "fail")
    assert wrong(structs.replace(GOOD, gpu="A GPU"), device="cuda") == []


def test_memory_that_does_not_fit_is_a_warning() -> None:
    (check,) = wrong(kv_memory="9GiB")
    assert "KV cache 9216 MiB" in check.what
    (check,) = wrong(host_memory="9GiB")
    assert "host memory 9216 MiB" in check.what
    beside = {"cluster": True, "kept_disk": 0, "replicas": 9, "kv_memory": "1GiB"}
    (check,) = wrong(**beside)
    assert "for each of 9 replicas" in check.what
    assert wrong(**beside, ray_address="10.0.0.1:6379") == [], "they are elsewhere"


def test_the_size_of_given_weights_counts(tmp_path: Path) -> None:
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(9 << 30)
    for model in (tmp_path, tmp_path / "model.safetensors"):
        (check,) = wrong(model=str(model))
        assert "weights 9216 MiB" in check.what
    (check,) = wrong(speculation="draft", draft_model=str(tmp_path))
    assert "weights 9476 MiB" in check.what


def test_the_level_that_a_processor_offers_is_told_by_its_flags() -> None:
    avx2 = {"avx2", "fma", "f16c", "sse2"}
    avx512 = avx2 | {"avx512f", "avx512dq", "avx512bw", "avx512vl"}
    assert _offered(set()) == "plain"
    assert _offered(avx2) == "avx2"
    assert _offered(avx512) == _offered(avx512 | {"amx_tile"}) == "avx512"
    assert _offered(avx512 | {"avx512_bf16", "amx_tile", "amx_bf16", "amx_int8"}) == "amx"
