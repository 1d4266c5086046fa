"""Pictures, and adapters of models that see them."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.api import AdapterUse
from engine.assembly.assemble import load_core
from engine.model.sight.families import split
from tests.engine.adapters.peft_models import make_adapter
from tests.engine.model.states import config_of
from tests.engine.pictures.seeing_models import Part, picture, request, says, seeing_model
from tests.engine.pictures.test_pictures import words


@pytest.mark.parametrize("family", ["gemma3", "qwen2_5_vl", "smolvlm"])
def test_an_adapter_of_the_whole_changes_its_text_model(family: str, tmp_path: Path) -> None:
    model = seeing_model(family, tmp_path / "model")
    parts: list[Part] = [*words(1, 9), picture(family, 1), *words(2, 7)]
    names = {"rank_pattern": {"layers.1.self_attn.q_proj": 2}, "alpha_pattern": {"o_proj": 3}}
    targets = r".*(language_model|text_model)\..*(q_proj|o_proj|down_proj)"
    adapter = make_adapter(model, tmp_path / "adapter", 1, target_modules=targets, **names)
    base = says(model, family, parts)
    with adapter.changing(model) as changed:
        expected = says(changed, family, parts)
    core = load_core(config_of(tmp_path / "model", 200, 0))
    core.submit(request("r", parts, adapter=AdapterUse(adapter.name)))
    said = list[int]()
    while not core.is_idle:
        for name in core.take_wanted():
            (adapter if name == adapter.name else picture(family, 1)).bring(core)
        said += [token for delta in core.step() for token in delta.token_ids]
    assert said == expected != base


def test_who_waits_for_an_adapter_finds_its_pictures_behind_it(tmp_path: Path) -> None:
    family = "llava"
    model = seeing_model(family, tmp_path / "model")
    one, other = picture(family, 1), picture(family, 2)
    parts: list[Part] = [*words(1, 9), one, *words(2, 7)]
    base = says(model, family, parts)
    text, _ = split(model)
    adapter = make_adapter(text, tmp_path / "adapter", 1, target_modules=["q_proj", "o_proj"])
    changed = request("changed", parts, adapter=AdapterUse(adapter.name))
    known = {shown.name: shown for shown in (one, other)}
    core = load_core(config_of(tmp_path / "model", 200, 0, picture_memory_bytes=0))
    said: list[list[int]] = []
    for num_others in (3, 0):  # whose pictures come and go before the adapter comes
        said.append([])
        left, waits = {str(number) for number in range(num_others)}, False
        core.submit(changed)
        for name in left:
            core.submit(request(name, [*words(int(name), 4), other]))
        while not core.is_idle:
            wanted = core.take_wanted()
            waits |= adapter.name in wanted
            for name in set(wanted) - {adapter.name}:
                known[name].bring(core)
            if waits and not left:
                adapter.bring(core)
                waits = False
            for delta in core.step():
                assert delta.error is None, delta.error
                said[-1] += delta.token_ids if delta.request_id == "changed" else []
                left -= {delta.request_id} if delta.finish_reason else set()
            core.scheduler.check()
    assert said[0] == said[1] != base
