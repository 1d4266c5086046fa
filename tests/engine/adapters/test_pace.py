"""How many adapters come at a time, and how soon, beside others' requests; and where they stay."""

from __future__ import annotations

import random
from pathlib import Path

from msgspec import structs

from engine.adapters.adapter import Adapter
from engine.adapters.pace import Pace
from engine.assembly.assemble import load_core
from tests.engine.adapters.peft_models import make_adapter
from tests.engine.adapters.test_adapters import asking, run
from tests.engine.model.states import config_of, saved
from tests.engine.simulated_model import random_prompt
from tests.engine.simulation import make_request, simulated_core


def test_few_are_brought_at_a_time_and_tenants_have_their_turns(tmp_path: Path) -> None:
    model = saved("llama", tmp_path / "model")
    made = [make_adapter(model, tmp_path / str(seed), seed, r=1) for seed in range(1, 21)]
    core = load_core(config_of(tmp_path / "model", 400, 0))
    prompt = random_prompt(random.Random(1), 9)
    for number, adapter in enumerate(made):
        tenant = "flood" if number < 16 else f"tenant {number}"
        request = asking(str(number), prompt, adapter, 2)
        core.submit(structs.replace(request, tenant=tenant))
    known, of_flood = {one.name: one for one in made}, {one.name for one in made[:16]}
    wanted = core.take_wanted()
    core.abort("15")  # before its turn
    waiting, seen = set(wanted), list(wanted)
    while not core.is_idle:
        assert len(waiting) <= 8
        assert len(waiting & of_flood) <= 4
        for name in waiting:
            known[name].bring(core)
        core.step()
        core.scheduler.check()
        waiting = set(core.take_wanted())
        seen += waiting
    assert len(wanted) == 8
    assert {one.name for one in made[16:]} < set(wanted)
    assert sorted(seen) == sorted(one.name for one in made if one is not made[15])
    assert core.stats().blocks_in_use == 0


def test_a_tenant_rests_between_adapters_where_others_have_requests_and_nowhere_else() -> None:
    now = [0.0]
    core = simulated_core(clock=lambda: now[0])
    pace = Pace(core.scheduler.lifecycle)
    first, second, third = (Adapter(name, "flood") for name in (b"1", b"2", b"3"))
    pace.add(first)
    pace.begin()
    now[0] = 1.0
    pace.end(first)
    core.submit(make_request("other", [1, 2, 3], 4, "neighbour"))
    for one in (second, third, Adapter(b"own", "neighbour")):
        pace.add(one)
    pace.begin()
    assert pace.coming.keys() == {b"own"}
    now[0] = 5.0
    pace.begin()
    assert pace.coming.keys() == {b"own", b"2"}  # one at a time of the flood's
    core.abort("other")
    while not core.is_idle:
        core.step()
    pace.begin()
    assert pace.coming.keys() == {b"own", b"2", b"3"}


def test_what_others_compute_with_is_not_loaded_elsewhere_when_its_first_user_is_forgotten(
    tmp_path: Path,
) -> None:
    model = saved("llama", tmp_path / "model")
    adapter = make_adapter(model, tmp_path / "1", 1)
    core = load_core(config_of(tmp_path / "model", 60, 0))
    prompt = random_prompt(random.Random(1), 20)
    core.submit(structs.replace(asking("first", prompt, adapter, 2), tenant="a"))
    run(core, [adapter])
    core.submit(structs.replace(asking("long", prompt, adapter, 150), tenant="b"))
    said = [token for _ in range(3) for delta in core.step() for token in delta.token_ids]
    core.forget_tenant("a")
    core.submit(structs.replace(asking("next", prompt, adapter, 2), tenant="b"))
    for number in range(12):  # they need all blocks that are not held
        other = random_prompt(random.Random(number), 200)
        core.submit(structs.replace(asking(f"other {number}", other, None, 2), tenant="c"))
    said += run(core, [adapter])["long"]
    assert said == adapter.says(model, prompt, 150)
