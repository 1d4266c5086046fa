"""A step of a small real model, taken apart."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bench import __main__ as cli
from bench.common.stopwatch import PartTimes
from bench.engine import step
from engine.batch.batch import BatchBuilder
from engine.model.layers import fused as decoder
from engine.serve import loop as core
from tests.engine.model.test_model import save_model

PLACES = [
    (core, "_send"),
    (BatchBuilder, "build"),
    (decoder, "attend"),
    (decoder.FusedDecoder, "forward"),
]


Measure = Callable[..., dict[str, float]]


@pytest.fixture
def measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Measure:
    """The figures of a model, measured as some options say."""

    def run(model: Path, *given: str) -> dict[str, float]:
        out = tmp_path / "figures.json"
        always = ["--model", str(model), "--json", str(out), "--threads", "1", "--device", "cpu"]
        monkeypatch.setattr("sys.argv", ["bench", "step", *always, "--context", "32", *given])
        # This process goes on.
        monkeypatch.setattr("bench.common.options.thread_environment", lambda _: {})
        assert cli.main() == 0
        found: dict[str, float] = json.loads(out.read_text())["figures"]
        assert found.keys() <= step.FIGURES.keys()
        return found

    return run


def taken_apart(measure: Measure, family: str, folder: Path) -> dict[str, float]:
    save_model(family, folder / "model")
    given = ["--batches", "1", "8", "--chunk", "16", "--steps", "4"]
    return measure(folder / "model", *given)


@pytest.mark.parametrize(
    ("family", "absent"), [("llama", {"router", "experts", "shared"}), ("qwen2_moe", set())]
)
def test_the_parts_of_a_fused_step_add_up(
    family: str, absent: set[str], measure: Measure, tmp_path: Path
) -> None:
    before = [vars(owner)[name] for owner, name in PLACES]
    found = taken_apart(measure, family, tmp_path)
    assert [vars(owner)[name] for owner, name in PLACES] == before, "nothing stays replaced"
    cases = ("decode_1", "decode_8", "prefill")
    assert found.keys() == {f"us_{case}_{part}" for case in cases for part in step.PARTS}
    for case in cases:
        parts = {part: found[f"us_{case}_{part}"] for part in step.PARTS}
        total, plain = parts.pop("total"), parts.pop("plain")
        assert sum(parts.values()) == pytest.approx(total)
        assert plain > 0
        nothing = {part for part, seconds in parts.items() if not seconds}
        assert absent <= nothing <= absent | ({"hand_over"} if case == "prefill" else set())


def test_ways_to_choose_tokens_are_compared_with_greedy(model: Path, measure: Measure) -> None:
    found = measure(model, "--sampling", "--steps", "2")
    kinds = step.SAMPLING.keys() - {"greedy"}
    assert found.keys() == {f"{kind}_over_greedy_{batch}" for kind in kinds for batch in (8, 32)}
    assert min(found.values()) > 0


@pytest.mark.parametrize(
    ("option", "prefix", "cases"),
    [
        ("--kv", "int8_kv_over_auto", ("decode_1", "decode_8", "prefill")),
        ("--invariant", "invariant_over_default", ("1", "8", "shared_8", "prefill")),
    ],
)
def test_caches_in_8_bits_and_the_invariant_mode_are_compared_with_the_default(
    option: str, prefix: str, cases: tuple[str, ...], model: Path, measure: Measure
) -> None:
    found = measure(model, option, "--chunk", "16", "--steps", "2", "--batches", "1", "8")
    assert found.keys() == {f"{prefix}_{case}" for case in cases}
    assert min(found.values()) > 0


def test_a_model_that_is_not_fused_shows_its_attention(measure: Measure, tmp_path: Path) -> None:
    found = taken_apart(measure, "gpt_neox", tmp_path)
    assert min(found[f"us_decode_8_{part}"] for part in ("attention", "rotation", "forward")) > 0
    assert not found["us_decode_8_qkv"]


def test_the_command_line_leaves_it_to_the_bench_to_import_torch() -> None:
    code = (
        "import sys; from bench.__main__ import _parser\n"
        "sys.argv = ['bench', 'step']; _parser()\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_part_does_not_count_what_its_parts_take(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def work(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr("bench.common.stopwatch.perf_counter", lambda: now)
    times = PartTimes()
    inner = times.timed("inner", work)

    def both() -> None:
        work(1)
        inner(2)
        inner(4)
        work(8)

    times.timed("outer", both)()
    assert times.take() == {"inner": 6, "outer": 9}
    assert times.take() == {}


@pytest.mark.exhaustive
def test_steps_in_several_processes_are_compared_with_those_in_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model("llama", tmp_path / "model")
    out = tmp_path / "figures.json"
    given = ["step", "--model", str(tmp_path / "model"), "--json", str(out), "--steps", "3"]
    given += ["--batches", "1", "--context", "32", "--chunk", "16", "--tensor-parallel", "2"]
    monkeypatch.setattr("sys.argv", ["bench", *given, "--device", "cpu"])
    monkeypatch.setattr("bench.common.options.thread_environment", lambda _: {})
    assert cli.main() == 0
    found = json.loads(out.read_text())["figures"]
    assert found.keys() == {"parallel_over_one_decode_1", "parallel_over_one_prefill"}
    assert found.keys() <= step.FIGURES.keys()
    assert all(ratio > 0 for ratio in found.values())
