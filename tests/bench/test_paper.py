"""The rebuilt figures of the PagedAttention paper: a small run, and what each part stands on."""

from __future__ import annotations

import json
import math
import random
from dataclasses import astuple, replace
from pathlib import Path

import pytest
from PIL import Image

from bench import __main__ as cli
from bench import paper
from bench.paper import lengths
from bench.paper.baselines.server import TracedRequest
from bench.paper.blocks import shared_prompt_blocks
from bench.paper.cost_model import (
    KV_BYTES_PER_TOKEN,
    PAPER_SLOTS,
    StepCost,
    StepShape,
    fit,
    opt_13b_on_a100,
)
from bench.paper.reality import Scale, measure_reality
from bench.paper.sharing import parallel_sampling, simulated_saving
from bench.paper.simulation import Curve, simulate
from bench.paper.systems import FASTER_TRANSFORMER, MAX, ORACLE, PARTYWALL, Paged, make_server
from bench.paper.workloads import Workload, tokens


def trace(*requests: tuple[float, int, int]) -> list[TracedRequest]:
    return [
        TracedRequest(number, arrival, tokens(number, prompt), tokens(number, output))
        for number, (arrival, prompt, output) in enumerate(requests)
    ]


class Clockwork:
    """A step takes a second."""

    def seconds(self, shape: StepShape) -> float:
        return 1.0


@pytest.mark.parametrize(
    ("draw", "prompt", "output"),
    [(lengths.sharegpt, 161.3, 338.0), (lengths.alpaca, 19.3, 58.4)],
)
def test_synthetic_lengths_have_the_papers_means(
    draw: object, prompt: float, output: float
) -> None:
    assert callable(draw)
    found = draw(100_000)
    assert found.mean_prompt == pytest.approx(prompt, rel=0.02)
    assert found.mean_output == pytest.approx(output, rel=0.02)
    assert max(map(sum, zip(found.prompts, found.outputs, strict=True))) <= 2048
    assert min(*found.prompts, *found.outputs) >= 1
    assert draw(100).prompts == found.prompts[:100], "more of them begin with the same ones"


def test_the_azure_trace_is_read_and_has_a_stand_in(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,5000,100\n"
    )
    found = lengths.azure(4, path)
    assert (
        sorted(zip(found.prompts, found.outputs, strict=True))
        == [(374, 44)] * 2 + [(1948, 100)] * 2
    )
    synthetic = lengths.azure(20_000, tmp_path / "missing.csv")
    assert synthetic.name == "Azure (synthetic)"
    assert synthetic.mean_output == pytest.approx(211, rel=0.1)


def test_arrivals_keep_their_pattern_at_every_rate() -> None:
    slow, fast = (lengths.poisson_arrivals(2000, rate, seed=3) for rate in (1.0, 4.0))
    assert slow == sorted(slow)
    assert slow[-1] == pytest.approx(2000, rel=0.1)
    assert fast == pytest.approx([time / 4 for time in slow])


def test_the_fit_finds_the_cost_that_made_the_steps() -> None:
    draw = random.Random(0)
    shapes = [
        StepShape(draw.randint(1, 600), draw.randint(1, 60), draw.randint(1, 9000), pairs)
        for pairs in (0, 100, 20_000, 300_000) * 30
    ]
    true = StepCost(0.05, 0.001, 0.002, 1e-6, 1e-7, knee=32)
    found = fit(shapes, list(map(true.seconds, shapes)))
    assert found.error_mean < 1e-6
    assert astuple(found.cost) == pytest.approx(astuple(true))
    reading_is_free = replace(true, context=0.0)
    noisy = [reading_is_free.seconds(shape) * draw.uniform(0.95, 1.05) for shape in shapes]
    again = fit(shapes, noisy)
    assert min(astuple(again.cost)) >= 0
    assert again.error_mean < 0.05
    assert again.error_total < 0.01


def test_the_papers_scale_is_the_papers() -> None:
    assert KV_BYTES_PER_TOKEN == 800 * 1024
    assert 15_700 <= PAPER_SLOTS <= 15_750
    cost = opt_13b_on_a100()
    alone = cost.seconds(StepShape(tokens=1, sequences=1, context=500, pairs=0))
    batch = cost.seconds(StepShape(tokens=32, sequences=32, context=16_000, pairs=0))
    assert 0.017 < alone < 0.025, "weights read once: 25.7 GB at 1.3 TB/s"
    assert batch < 1.6 * alone, "which is why batching pays"


def test_latency_is_time_from_arrival_to_answer_over_output_tokens() -> None:
    server = make_server(MAX, 2048)  # room for one request
    run = simulate(server, trace((0.0, 10, 4), (1.0, 10, 2)), Clockwork())
    assert run.steps == 6
    assert run.seconds == 6
    assert run.latency == pytest.approx((4 / 4 + 5 / 2) / 2)


def test_a_run_is_cut_short_once_its_limit_is_out_of_reach() -> None:
    requests = trace(*((0.0, 10, 4) for _ in range(50)))
    run = simulate(make_server(MAX, 2048), requests, Clockwork(), limit=2.0)
    assert math.isinf(run.latency)
    assert run.steps < 4 * 50


def test_partywall_answers_as_scripted_and_shares_what_prompts_begin_with() -> None:
    workload = Workload("prefix", "translation", seconds=5, prefix=80)
    server = Paged(PAPER_SLOTS, 64)
    requests = workload.trace(4.0)
    run = simulate(server, requests, opt_13b_on_a100())
    stats = server.core.stats()
    assert stats.output_tokens == sum(len(request.output) for request in requests)
    assert stats.cached_tokens == 80 * (len(requests) - 1)
    assert run.latency < 0.1


def test_a_chats_prompt_ends_with_what_was_said_before() -> None:
    requests = Workload("chat", "chat", seconds=300).trace(1.0)
    assert [request.number for request in requests] == list(range(len(requests)))
    assert max(len(request.prompt) for request in requests) == 1024
    answers = {request.output[0]: request for request in requests}
    later = [request for request in requests if set(request.prompt) & answers.keys()]
    assert later
    for request in later:
        said = [answers[token] for token in set(request.prompt) & answers.keys()]
        assert all(earlier.arrival < request.arrival for earlier in said)


def test_the_sustained_rate_lies_where_the_curve_crosses_the_latency() -> None:
    server = make_server(ORACLE, 2048)
    run = simulate(server, trace((0.0, 10, 4)), Clockwork())
    curve = Curve(ORACLE, "none", run, [(1.0, 0.02), (2.0, 0.05), (3.0, 0.2)])
    assert curve.sustained(0.1) == pytest.approx(2.5)
    assert curve.sustained(0.01) == 0
    assert curve.sustained(1.0) == 3


def test_a_hundred_requests_hold_one_system_prompt() -> None:
    assert shared_prompt_blocks(100, 2048) == (128, 12_800)


def test_more_samples_of_a_request_save_more_memory() -> None:
    workload = Workload("ShareGPT", "ShareGPT", seconds=10)
    savings = [parallel_sampling(workload, width, num_requests=24) for width in (2, 6)]
    assert 0 < savings[0] < 1 / 2
    assert savings[0] < savings[1] < 5 / 6


def test_partywall_batches_more_and_answers_sooner_than_what_it_replaced() -> None:
    requests = Workload("ShareGPT", "ShareGPT", seconds=20).trace(4.0)
    runs = [
        simulate(make_server(system, PAPER_SLOTS), requests, opt_13b_on_a100())
        for system in (PARTYWALL, ORACLE, MAX, FASTER_TRANSFORMER)
    ]
    assert [run.latency for run in runs] == sorted(run.latency for run in runs)
    batches = [run.running for run in runs[:3]]
    assert batches == sorted(batches, reverse=True)
    assert batches[-1] == pytest.approx(7)


def test_beams_that_all_follow_one_share_more_than_beams_that_part() -> None:
    workload = Workload("Alpaca", "Alpaca", seconds=10)
    best = [-0.01 * rank for rank in range(6)]
    parting = [[-1.0] + [-51.0] * 5, [0.0] + [-50.0] * 5, [0.0] + [-50.0] * 5]
    following = [best, [-50.0 + score for score in best], [-50.0 + score for score in best]]
    apart, together = (simulated_saving(workload, 3, 40, [s], 3000) for s in (parting, following))
    assert 0 < apart < together - 0.1
    assert together < 2 / 3


def test_the_real_point_and_its_simulation_are_compared(model: Path) -> None:
    """Whether they agree is for the bench to tell; random weights take no time worth a fit."""
    scale = Scale(divisor=32, num_requests=6, calibration_steps=20)
    reality = measure_reality(str(model), scale)
    assert reality.num_requests == 6
    assert reality.measured.keys() == reality.simulated.keys() == {PARTYWALL, ORACLE}
    assert all(0 < latency < math.inf for latency in reality.measured.values())
    assert reality.error >= 0


@pytest.mark.exhaustive
def test_a_small_run_has_all_figures_tables_and_pictures(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("bench.paper.simulation._FRACTIONS", (1.0,))
    out, pictures = tmp_path / "figures.json", tmp_path / "pictures"
    options = ["--minutes", "0.05", "--processes", "1", "--no-real", "--trace", "missing.csv"]
    options += ["--model", str(model)]
    given = ["paper", *options, "--pictures", str(pictures), "--json", str(out)]
    monkeypatch.setattr("sys.argv", ["bench", *given])
    assert cli.main() == 0
    found = json.loads(out.read_text())["figures"]
    real = {"sim_vs_real_error", "sim_agrees_in_order", "cost_model_error"}
    assert found.keys() == paper.FIGURES.keys() - real
    assert all(math.isfinite(value) for value in found.values())
    assert found["prompt_blocks_100_requests"] == 128
    printed = capsys.readouterr().out
    assert all(f"({letter})" in printed for letter in "abcdefg")
    for name in ("memory", "rates", "sharing", "prefix", "chat", "block-size", "batches"):
        with Image.open(pictures / f"paper-{name}.png") as image:
            assert image.width >= 1000
            assert len(image.convert("RGB").getcolors(1 << 24) or []) > 10


def test_unknown_figures_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["bench", "paper", "--figures", "a,x"])
    with pytest.raises(SystemExit):
        cli.main()
    assert "figures are a, b, c" in capsys.readouterr().err
