"""Pictures whose tokens see each other: no step ends within them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from engine.api import RequestRefused, StepOutOfMemory
from engine.assembly.assemble import load_core
from engine.sequences.plan import Sampled, StepPlan
from engine.validation import check_request
from tests.engine.model.states import config_of
from tests.engine.pictures.seeing_models import IMAGE, Part, picture, request, says, seeing_model
from tests.engine.pictures.test_pictures import UNCUT, run, words


@pytest.mark.parametrize("family", UNCUT)
def test_no_step_ends_within_what_is_seen_as_a_whole(family: str, tmp_path: Path) -> None:
    seeing_model(family, tmp_path)
    one = picture(family, 1, size=2)
    count = UNCUT[family]
    fields = {"step_token_budget": count + 4, "max_running_requests": 4}
    core = load_core(config_of(tmp_path, 200, 0, **fields))
    marked = [place for place, token in enumerate(one.token_ids) if token == IMAGE]
    prompts = [[*words(seed, 3 + 5 * seed), one, *words(seed, 9), one] for seed in range(4)]
    for number, parts in enumerate(prompts):
        core.submit(request(str(number), parts, 20))
    assert core.take_wanted() == [one.name]
    one.bring(core)
    ends = set[int]()
    while not core.is_idle:
        core.step()
        for group in core.scheduler.running.values():
            ends |= {
                sequence.num_computed - use.start
                for sequence in group.prefill
                for use in group.request.pictures
            }
        core.scheduler.check()
    within = {place for place in marked if place - 1 in marked}
    assert not ends & within
    assert len(ends) > 4


def test_a_picture_that_no_step_has_room_for_is_refused(tmp_path: Path) -> None:
    seeing_model("gemma3", tmp_path)
    fields = {"step_token_budget": 19, "max_running_requests": 4}
    core = load_core(config_of(tmp_path, 200, 0, **fields))
    asked = request("r", [*words(1, 3), picture("gemma3")])
    with pytest.raises(RequestRefused, match="a picture has 16 tokens, which are computed in one"):
        check_request(asked, core.info)


def test_a_picture_is_computed_with_the_last_pages_that_a_reserve_leaves(tmp_path: Path) -> None:
    model = seeing_model("gemma3", tmp_path)
    shown = picture("gemma3", 1)
    parts: list[Part] = [*words(1, 8), shown, *words(2, 30)]
    config = config_of(tmp_path, 16, 0, step_token_budget=40, max_running_requests=4)
    core = load_core(structs.replace(config, block_size=2))
    pool, budget = core.scheduler.pool, core.scheduler.budget
    for seed in (10, 11):
        run(core, [request("b", words(seed, 50), 1, tenant="b")], [])
    core.submit(request("a", parts, 4))
    core.take_wanted()
    shown.bring(core)
    budget._limit = 9  # up to the first token of the picture that others see
    core.step()
    (group,) = core.scheduler.running.values()
    assert group.prefill[0].num_computed == 9
    budget._limit = 40
    assert not pool.num_free
    pool.reserve("b", pool.num_cached - 8)
    assert run(core, [], [])["a"] == says(model, "gemma3", parts, 4)


def test_a_picture_that_memory_lacks_for_beside_others_is_computed_behind_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = seeing_model("gemma3", tmp_path)
    shown, texts = picture("gemma3", 1), [words(seed, 9) for seed in (2, 3, 4)]
    parts: list[Part] = [*words(1, 5), shown, *words(5, 5)]
    fields = {"step_token_budget": 48, "max_running_requests": 4}
    core = load_core(config_of(tmp_path, 200, 0, **fields))
    runner: Any = core._runner
    execute = runner.execute

    def narrow(plan: StepPlan) -> Sampled:
        if plan.num_tokens > 18:
            raise StepOutOfMemory("no memory")
        sampled: Sampled = execute(plan)
        return sampled

    monkeypatch.setattr(runner, "execute", narrow)
    requests = [request(str(number), text, 12) for number, text in enumerate(texts)]
    said = run(core, [*requests, request("shown", parts)], [shown])
    assert said.pop("shown") == says(model, "gemma3", parts)
    assert list(said.values()) == [says(model, "gemma3", text, 12) for text in texts]
