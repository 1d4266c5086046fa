"""Runs everything that was asked for, several simulations at once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from bench.paper.blocks import BLOCK_SIZES, shared_prompt_blocks, try_block_size
from bench.paper.reality import Scale, measure_reality
from bench.paper.report import Findings
from bench.paper.sharing import WIDTHS, beam_savings, parallel_sampling
from bench.paper.simulation import curve
from bench.paper.systems import ORACLE, ORCAS, PARTYWALL, SYSTEMS, WITHOUT_CACHE
from bench.paper.workloads import Workload

T = TypeVar("T")

ALL_FIGURES = "abcdefg"
PREFIXES = (80, 341)
_SHARED_PROMPT = (100, 2048)


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured."""

    figures: str = ALL_FIGURES
    minutes: float = 10.0
    """Of simulated time at ShareGPT's pace; shorter requests come for a shorter time."""
    azure_path: Path | None = None
    model_path: str | None = None
    """The small model, for beams and the point that runs for real; `None`: without these."""
    real: bool = True
    """Whether that point is computed."""
    scale: Scale = field(default_factory=Scale)
    processes: int = 1
    workloads: tuple[str, ...] = ("ShareGPT", "Alpaca", "Azure")
    """Of (a), (b) and (g)."""

    def plain(self) -> dict[str, tuple[Workload, float]]:
        """The workloads of (a), (b) and (g), each with a rate that no system can serve."""
        seconds = 60 * self.minutes
        return {
            "ShareGPT": (Workload("ShareGPT", "ShareGPT", seconds), 6.0),
            "Alpaca": (Workload("Alpaca", "Alpaca", seconds / 5), 120.0),
            "Azure": (Workload("Azure", "Azure", seconds / 1.5, azure_path=self.azure_path), 4.0),
        }

    def prefixed(self, tokens: int) -> tuple[Workload, float]:
        """Sentences to translate behind examples of `tokens` tokens (figure d)."""
        seconds = 60 * self.minutes / 15
        return Workload(f"prefix {tokens}", "translation", seconds, prefix=tokens), 130.0

    def chat(self) -> tuple[Workload, float]:
        """Conversations (figure e)."""
        return Workload("chat", "chat", 60 * self.minutes / 2), 6.0

    def forked(self) -> list[tuple[Workload, int]]:
        """What has several sequences a request, and how many requests (figure c)."""
        plain = self.plain()
        return [
            (plain["ShareGPT"][0], max(2, round(12 * self.minutes))),
            (plain["Alpaca"][0], max(4, round(40 * self.minutes))),
        ]


def measure(plan: Plan) -> Findings:
    """Measure what the plan names. The real point runs last, when nothing else does."""
    findings = Findings()
    with _Pool(plan.processes) as pool:
        wanted = set(plan.figures)
        plain = {
            (name, system): pool.start(curve, system, *plan.plain()[name])
            for name in plan.workloads
            for system in SYSTEMS
            if wanted & set("abg") or ("f" in wanted and system == PARTYWALL)
        }
        prefixes = {
            (tokens, system): pool.start(curve, system, *plan.prefixed(tokens))
            for tokens in PREFIXES
            for system in (PARTYWALL, ORACLE)
            if "d" in wanted
        }
        chat = {
            system: pool.start(curve, system, *plan.chat())
            for system in (PARTYWALL, WITHOUT_CACHE, *ORCAS)
            if "e" in wanted
        }
        savings = _start_savings(plan, pool) if "c" in wanted else {}
        beams = _start_beams(plan, pool) if "c" in wanted else {}
        for (name, system), job in plain.items():
            findings.plain.setdefault(name, {})[system] = job()
        if "f" in wanted:
            _block_sizes(plan, pool, findings)
        for (tokens, system), job in prefixes.items():
            findings.prefixes.setdefault(tokens, {})[system] = job()
        findings.chat = {system: job() for system, job in chat.items()}
        for (name, width), samples in savings.items():
            findings.savings.setdefault(("parallel", name), {})[width] = samples()
        for width, beams_of_width in beams.items():
            for name, saving in beams_of_width().items():
                findings.savings.setdefault(("beam", name), {})[width] = saving
    if "d" in wanted:
        findings.prompt_blocks = shared_prompt_blocks(*_SHARED_PROMPT)
    if "b" in wanted and plan.real and plan.model_path is not None:
        findings.reality = measure_reality(plan.model_path, plan.scale)
    return findings


def _block_sizes(plan: Plan, pool: _Pool, findings: Findings) -> None:
    """Figure (f), at the rate that blocks of 16 tokens sustain."""
    jobs = {}
    for name in ("ShareGPT", "Alpaca"):
        workload, saturating = plan.plain()[name]
        rate = findings.plain[name][PARTYWALL].sustained()
        short = replace(workload, seconds=workload.seconds / 2)
        jobs[name] = [
            pool.start(try_block_size, size, short, saturating, rate) for size in BLOCK_SIZES
        ]
    findings.block_sizes = {name: [job() for job in started] for name, started in jobs.items()}


def _start_savings(plan: Plan, pool: _Pool) -> dict[tuple[str, int], Callable[[], float]]:
    """Figure (c), samples: the jobs by workload and width."""
    return {
        (workload.name, width): pool.start(parallel_sampling, workload, width, 3 * count)
        for workload, count in plan.forked()
        for width in WIDTHS
    }


def _start_beams(plan: Plan, pool: _Pool) -> dict[int, Callable[[], dict[str, float]]]:
    """Figure (c), beams: the jobs by width."""
    if plan.model_path is None:
        return {}
    return {
        width: pool.start(beam_savings, plan.forked(), width, plan.model_path) for width in WIDTHS
    }


class _Pool:
    """Calls functions in `processes` other processes; in this one, and at once, if that is 1."""

    def __init__(self, processes: int) -> None:
        context = get_context("spawn")
        self._executor = (
            ProcessPoolExecutor(processes, mp_context=context) if processes > 1 else None
        )

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, *_: object) -> None:
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)

    def start(self, function: Callable[..., T], *arguments: Any) -> Callable[[], T]:
        """Begin the call; the result is waited for by calling what this returns."""
        if self._executor is None:
            result = function(*arguments)
            return lambda: result
        future: Future[T] = self._executor.submit(function, *arguments)
        return future.result
