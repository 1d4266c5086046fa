"""Masks that take long are found for few sequences of a step, and no answer changes by it."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.api import EngineRequest, Grammar
from engine.assembly.parts import Parts
from engine.constraint import follower
from engine.constraint.follower import Follower
from tests.engine.constraint.test_forced import LONG_KEYS
from tests.engine.draft.test_models import Hindsight
from tests.engine.grammar.constrained import PICK, VOCAB, constraining, save, start
from tests.engine.run.test_graphs import load
from tests.engine.simulated_model import random_prompt
from tests.engine.simulation import make_request, run_to_end

SLOW = Grammar(kind="regex", source="[a-m]{60}")
QUICK = Grammar(kind="regex", source="[n-z]{60}")
Seconds = Callable[[Follower], float]


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    folder: Path = tmp_path_factory.mktemp("turns")
    save(folder)
    return load(folder, num_blocks=80)


@pytest.fixture
def slow_masks(monkeypatch: pytest.MonkeyPatch) -> Callable[[Seconds], None]:
    """Lets masks seem to take as many seconds as somebody says."""

    def install(seconds: Seconds) -> None:
        now, compute = [0.0], Follower.compute

        def timed(self: Follower, address: int) -> None:
            compute(self, address)
            now[0] += seconds(self)

        monkeypatch.setattr(follower, "thread_time", lambda: now[0])
        monkeypatch.setattr(Follower, "compute", timed)

    return install


def requests_of(grammars: list[Grammar], tenant: str) -> list[EngineRequest]:
    rng = random.Random(3)
    return [
        make_request(
            f"{tenant} {number}", random_prompt(rng, 9), 30, tenant=tenant, grammar=grammar
        )
        for number, grammar in enumerate(grammars)
    ]


@pytest.mark.parametrize("runs_ahead", [False, True])
@pytest.mark.parametrize("is_guessing", [False, True])
def test_who_waits_for_a_turn_says_the_same(
    parts: Parts,
    runs_ahead: bool,
    is_guessing: bool,
    slow_masks: Callable[[Seconds], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requests = requests_of([PICK, LONG_KEYS, SLOW, SLOW, QUICK], "a")

    drafter: Hindsight | None = None

    def run() -> tuple[dict[str, list[int]], int]:
        core = constraining(parts, runs_ahead=runs_ahead, drafter=drafter, is_held=is_guessing)
        start(core, requests)
        return run_to_end(core), core.stats().steps

    expected, num_steps = run()
    if is_guessing:
        drafter = Hindsight({name: {0: one} for name, one in expected.items()}, VOCAB, right=1.0)
        num_steps = run()[1]
    rng = random.Random(4)
    slow_masks(lambda _: rng.choice([0.0, 0.0, 0.009]))
    monkeypatch.setattr(follower, "_MOST_UNUSUAL_SECONDS", 10.0)
    found, num_slow_steps = run()
    assert found == expected
    assert num_slow_steps > num_steps


def test_a_neighbour_goes_on_and_waits_for_one_slow_mask_a_step(
    parts: Parts, slow_masks: Callable[[Seconds], None]
) -> None:
    attackers = requests_of([SLOW] * 6, "attacker")
    neighbours = requests_of([QUICK], "neighbour")
    core = constraining(parts)
    start(core, [*attackers, *neighbours])
    groups = core.scheduler.lifecycle.live.values()
    (quick,) = {group.sequences[0].grammar for group in groups if group.tenant == "neighbour"}
    taken: list[float] = []

    def seconds(own: Follower) -> float:
        is_first = own._length == len(attackers[0].prompt)  # found when it was compiled
        taken.append(0.0 if is_first or own._grammar is quick else 0.009)
        return taken[-1]

    slow_masks(seconds)
    ends: dict[str, str | None] = {}
    num_steps = num_waited = 0
    while "neighbour 0" not in ends:
        taken.clear()
        deltas = core.step()
        assert sum(taken) < 0.01
        num_steps += "neighbour 0" in {delta.request_id for delta in deltas}
        num_waited += num_steps > 0 and "neighbour 0" not in {one.request_id for one in deltas}
        ends |= {one.request_id: one.error for one in deltas if one.finish_reason is not None}
    while not core.is_idle:
        ends |= {one.request_id: one.error for one in core.step() if one.finish_reason is not None}
    assert num_steps == 30
    assert num_waited <= 1, "until it is known whose masks take long"
    assert ends.pop("neighbour 0") is None
    assert len(ends) == 6
    assert all("too long" in str(error) for error in ends.values())
