"""The loads of `serve` and `peers`: what each asks of a server, and what it tells."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from bench import __main__ as cli
from bench.common import traces
from bench.common.drivers import Ask, DriverError, Timing
from bench.peers import peers
from bench.registry import BenchError
from bench.service import loads
from bench.service.loads import mixed
from bench.service.loads.rounds import Target
from tests.bench import stand_in


class Scripted:
    """Answers every question with its number; fails those that `fail_on` matches."""

    def __init__(self, fail_on: str | None = None, answer_seconds: float = 0.0) -> None:
        self.asks: list[Ask] = []
        self.running = 0
        self.running_at: list[int] = []
        self._fail_on = fail_on
        self._answer_seconds = answer_seconds

    async def ask(self, ask: Ask, timing: Timing) -> None:
        self.asks.append(ask)
        number = len(self.asks)
        self.running += 1
        self.running_at.append(self.running)
        timing.sent_at = perf_counter()
        await asyncio.sleep(self._answer_seconds)
        self.running -= 1
        if self._fail_on is not None and re.search(self._fail_on, ask.question):
            raise DriverError("no")
        timing.arrivals = [perf_counter()] * ask.output_tokens
        timing.output_tokens = ask.output_tokens
        timing.text = f"answer {number}"

    async def close(self) -> None:
        """Nothing is open."""


def words(text: str) -> int:
    return len(text.split())


def options(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    loads.add_load_arguments(parser)
    return loads.settle(parser.parse_args(given))


def measure(driver: Scripted, label: str, *given: str) -> dict[str, float]:
    settled = options(*given)
    load = loads.make_load(settled, words)
    tenants = [(f"key-{number}", system) for number, system in enumerate(load.systems)]
    target = Target(driver, tenants, settled.timeout_seconds)
    return asyncio.run(load.measure(target, label))


def asked(label: str, *given: str) -> list[Ask]:
    driver = Scripted()
    measure(driver, label, *given)
    return driver.asks


SHARED = ["--system-tokens", "20", "--tenants", "2", "--requests", "3"]


def test_shared_is_greedy_and_sampled_is_the_same_sampled() -> None:
    shared = asked("round 0", "--load", "shared", *SHARED)
    sampled = asked("round 0", "--load", "sampled", *SHARED)
    assert [ask.question for ask in shared] == [ask.question for ask in sampled]
    assert {ask.sampling.temperature for ask in shared} == {0.0}
    assert {(ask.sampling.temperature, ask.sampling.top_p) for ask in sampled} == {(1.0, 0.95)}
    assert len({ask.system for ask in shared}) == 2


COLD = ["--load", "cold", "--lengths", "30", "50", "--concurrency", "4"]


def test_cold_prompts_have_exactly_the_lengths_and_resemble_no_other() -> None:
    asks = asked("round 0", *COLD) + asked("round 1", *COLD)
    assert Counter(words(ask.question) for ask in asks) == {30: 10, 50: 10}
    assert len({ask.question.split()[0] for ask in asks}) == len(asks)
    assert {ask.system for ask in asks} == {""}
    again = asked("round 1", *COLD)
    assert again == asks[10:], "every server is asked the same"


def test_cold_prompts_come_one_by_one_and_then_at_once() -> None:
    driver = Scripted(answer_seconds=0.002)
    found = measure(driver, "round 0", *COLD)
    assert driver.running_at == [1] * 6 + [1, 2, 3, 4]
    lengths = [words(ask.question) for ask in driver.asks]
    assert lengths == [30] * 3 + [50] * 3 + [30, 50] * 2
    assert found.keys() - loads.LOAD_FIGURES.keys() == {
        f"ttft_ms_p50_{how}_{length}" for how in ("alone", "at_once") for length in (30, 50)
    }
    assert min(found[name] for name in found if name.startswith("ttft")) >= 2.0


CHAT = ["--load", "chat", "--tenants", "2", "--requests", "2", "--turns", "3"]


@pytest.fixture
def questions(tmp_path: Path) -> list[str]:
    file = tmp_path / "questions.jsonl"
    turns = [[f"first {number}", f"then {number}"] for number in range(9)]
    file.write_text("\n".join(json.dumps({"turns": both}) for both in turns))
    return ["--questions", str(file)]


def test_a_turn_is_sent_behind_the_last_answer_with_all_that_was_said(questions: list[str]) -> None:
    driver = Scripted(answer_seconds=0.001)
    found = measure(driver, "round 0", *CHAT, *questions, "--concurrency", "2")
    assert found["errors"] == 0
    assert max(driver.running_at) == 2
    chats: dict[str, list[Ask]] = {}
    for ask in driver.asks:
        first = ask.history[0][0] if ask.history else ask.question
        chats.setdefault(first, []).append(ask)
    assert len(chats) == 4
    numbers = {id(ask): number for number, ask in enumerate(driver.asks, 1)}
    for turns in chats.values():
        assert len(turns) == 3
        for before, ask in pairwise(turns):
            assert ask.history[:-1] == before.history
            assert ask.history[-1] == (before.question, f"answer {numbers[id(before)]}")
        assert re.search(r"first \d$", turns[0].question)
        assert turns[1].question.startswith("then ")


def test_a_conversation_ends_with_the_turn_that_fails(questions: list[str]) -> None:
    driver = Scripted(fail_on="then ")
    found = measure(driver, "round 0", *CHAT, *questions)
    assert found["errors"] == 4
    assert len(driver.asks) == 8


def test_questions_that_are_not_there_are_told_and_stood_in_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked("round 0", *CHAT, "--questions", str(tmp_path / "none.jsonl"))
    (line,) = capsys.readouterr().err.splitlines()
    assert "none.jsonl" in line
    assert "--questions" in line


MIXED = ["--load", "mixed", "--tenants", "2", "--system-tokens", "20", "--shrink", "10"]


@pytest.fixture
def trace(tmp_path: Path) -> list[str]:
    """A request a second, each longer than the one before."""
    file = tmp_path / "azure.csv"
    rows = [f"2023-11-16 18:{n // 60:02}:{n % 60:02},{200 + n},{50 + n}" for n in range(900)]
    file.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n")
    return ["--trace", str(file)]


def arrivals(rate: float, label: str, *given: str) -> list[Any]:
    load = loads.make_load(options(*MIXED, *given), words)
    assert isinstance(load, mixed.Mixed)
    tenants = [(f"key-{number}", system) for number, system in enumerate(load.systems)]
    return load.arrivals(Target(Scripted(), tenants, 1.0), label, rate)


def test_mixed_requests_follow_the_trace_at_the_rate_asked_for(trace: list[str]) -> None:
    slow, fast = (arrivals(rate, "round 0", *trace, "--seconds", "20") for rate in (3.0, 6.0))
    assert (len(slow), len(fast)) == (60, 120)
    assert [one.due_seconds for one in fast] == pytest.approx([n / 6 for n in range(120)])
    lengths = [[words(one.ask.question) for one in found] for found in (slow, fast)]
    assert lengths[0] == lengths[1][:60], "both begin at the same place"
    assert lengths[0] == sorted(lengths[0])
    assert max(lengths[1]) <= 1100 / 10
    assert not {one.ask.question for one in slow} & {one.ask.question for one in fast}


def test_half_of_the_mixed_requests_are_sampled_and_a_third_share_a_prompt(
    trace: list[str],
) -> None:
    found = [one.ask for one in arrivals(6.0, "round 0", *trace, "--seconds", "10")]
    assert sum(ask.sampling.temperature > 0 for ask in found) == 30
    assert sum(ask.system != "" for ask in found) == 20
    assert sum(ask.system != "" and ask.sampling.temperature > 0 for ask in found) == 10
    assert len({ask.system for ask in found}) == 3
    assert len({ask.question.split()[0] for ask in found}) == 60


def test_mixed_tells_the_figures_at_its_rate_and_the_goodput(trace: list[str]) -> None:
    given = ["--seconds", "0.1", "--rate", "20", "--halvings", "1"]
    found = measure(Scripted(), "round 0", *MIXED, *trace, *given)
    assert found["goodput_requests_per_s"] == 640  # 32 times as much: it never was too much
    assert found["errors"] == 0
    assert found.keys() == loads.LOAD_FIGURES.keys() | mixed.FIGURES.keys()


def test_a_server_that_fails_too_often_has_no_goodput(trace: list[str]) -> None:
    given = ["--seconds", "0.1", "--rate", "400", "--halvings", "1"]
    found = measure(Scripted(fail_on="^[0-9a-f]*[0-9a-e]:"), "round 0", *MIXED, *trace, *given)
    assert found["goodput_requests_per_s"] == 0
    assert 0 < found["errors"] < 40


def test_a_trace_that_is_not_there_is_told_and_stood_in_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = arrivals(50.0, "round 0", "--trace", str(tmp_path / "none.csv"), "--seconds", "10")
    times = [one.due_seconds for one in found]
    assert len(times) == 500
    assert times == sorted(times)
    assert times[-1] < 10
    (line,) = capsys.readouterr().err.splitlines()
    assert "none.csv" in line
    assert "--trace" in line


@pytest.mark.parametrize("text", ["a,b\n1,2\n", "TIMESTAMP,ContextTokens,GeneratedTokens\n", ""])
def test_a_file_that_is_no_trace_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "azure.csv"
    file.write_text(text)
    with pytest.raises(BenchError, match=r"azure\.csv"):
        traces.read_trace(file)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--load", "shared", "--turns", "3"], "--turns says nothing to --load shared"),
        (["--load", "cold", "--system-tokens", "3"], "--system-tokens says nothing to --load cold"),
        (["--load", "chat", "--rate", "1.5"], "--rate says nothing to --load chat"),
        (["--load", "mixed", "--requests", "2"], "--requests says nothing to --load mixed"),
    ],
)
def test_an_option_of_another_load_is_refused(given: list[str], told: str) -> None:
    with pytest.raises(BenchError, match=told):
        options(*given)


@pytest.mark.parametrize(
    "given",
    [
        ["--load", "all"],
        ["--load", "cold", "--lengths", "0"],
        ["--load", "mixed", "--rate", "nan"],
        ["--requests", "-1"],
        ["--concurrency", "0"],
    ],
)
def test_values_that_cannot_be_are_refused(given: list[str]) -> None:
    with pytest.raises(SystemExit):
        options(*given)


@pytest.mark.parametrize("transport", ["http", "websocket"])
def test_both_transports_send_the_history_and_how_to_sample(
    transport: str, peer: stand_in.Peer, monkeypatch: pytest.MonkeyPatch, questions: list[str]
) -> None:
    monkeypatch.setattr("bench.service.serve.token_counter", lambda _: words)
    common = ["bench", "serve", "--url", peer.url, "--transport", transport, "--rounds", "1"]
    chat = [*common, *CHAT, *questions, "--output-tokens", "2"]
    monkeypatch.setattr("sys.argv", chat)
    assert cli.main() == 0
    said = [body.get("messages", body.get("input")) for body in peer.bodies]
    (longest, *_) = sorted(said, key=len, reverse=True)
    assert [one["role"] for one in longest] == ["user", "assistant"] * 2 + ["user"]
    assert longest[1]["content"] == "word word "
    assert all("top_p" not in body and body["temperature"] == 0 for body in peer.bodies)
    peer.bodies.clear()
    monkeypatch.setattr("sys.argv", [*common, "--load", "sampled", *SHARED, "--output-tokens", "2"])
    assert cli.main() == 0
    sampled = [body for body in peer.bodies if body["temperature"] == 1]
    assert len(sampled) == 6
    assert {body["top_p"] for body in sampled} == {0.95}
    assert all(len(body.get("instructions", "")) or len(body["messages"]) == 2 for body in sampled)


def test_every_figure_of_a_load_and_its_ratio_is_listed(trace: list[str]) -> None:
    given = ["--seconds", "0.1", "--rate", "20", "--halvings", "1"]
    found = measure(Scripted(), "round 0", *MIXED, *trace, *given)
    found |= measure(Scripted(), "round 0", *COLD)
    for name in found:
        listed = re.sub(r"_\d+$", "_LENGTH", name)
        assert listed in loads.FIGURES
        ratio = peers.ratio_name(name)
        assert ratio is None or f"{re.sub('[0-9]+$', 'LENGTH', ratio)}_PEER" in peers.FIGURES
    assert peers.ratio_name("ttft_ms_p50_at_once_4096") == "ttft_p50_ratio_at_once_4096"
    assert peers.ratio_name("goodput_requests_per_s") == "goodput_ratio"
    assert peers.ratio_name("errors") is None
