"""Pictures whose tokens see each other: no step ends within them."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.api import RequestRefused
from engine.assembly.assemble import load_core
from engine.validation import check_request
from tests.engine.model.states import config_of
from tests.engine.pictures.seeing_models import IMAGE, picture, request, seeing_model
from tests.engine.pictures.test_pictures import UNCUT, words


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
