"""Files go with who they are of: tenants that are deleted, and secrets that are replaced."""

from __future__ import annotations

from pathlib import Path

from tests.engine.kept.simulated import keeper, kept_files, pin, save, start
from tests.engine.kept.test_keeper import BLOCKS, PROMPT, found
from tests.engine.simulation import expected_output, make_request, run_to_end


def test_a_tenant_that_is_deleted_after_a_restart_has_no_files_either(tmp_path: Path) -> None:
    core = start(tmp_path)
    pin(core, PROMPT)
    save(core)
    core = start(tmp_path)
    core.forget_tenant("a")
    core.close(5.0)
    assert not kept_files(tmp_path)


def test_who_is_forgotten_while_it_waits_leaves_nothing(tmp_path: Path) -> None:
    core = start(tmp_path)
    pin(core, PROMPT)
    save(core)
    core = start(tmp_path)
    core.submit(make_request("r", PROMPT, 6))
    core.forget_tenant("a")
    assert run_to_end(core)["r"] == expected_output(PROMPT, 6)
    assert found(core, name="later") == 0


def test_files_of_tenants_that_are_no_more_are_removed(tmp_path: Path) -> None:
    core = start(tmp_path)
    pin(core, PROMPT)
    pin(core, PROMPT, "b")
    save(core)
    core = start(tmp_path)
    keeper(core).forget_others({"b": "", "c": ""})
    core.close(5.0)
    assert len(kept_files(tmp_path)) == 1
    assert found(start(tmp_path), tenant="b") == 4 * BLOCKS


def test_files_under_a_former_secret_are_removed(tmp_path: Path) -> None:
    core = start(tmp_path)
    keeper(core).forget_others({"a": "one", "b": "one"})
    pin(core, PROMPT)
    pin(core, PROMPT, "b")
    save(core)
    core.close(5.0)
    core = start(tmp_path)  # what is on disk is found before anybody says whose it is
    assert found(core, name="before") == 4 * BLOCKS
    core = start(tmp_path)
    keeper(core).forget_others({"a": "two", "b": "one"})
    core.close(5.0)
    assert len(kept_files(tmp_path)) == 1
    core = start(tmp_path)
    keeper(core).forget_others({"a": "two", "b": "one"})
    keeper(core).keep_under("c", "one")  # it has none, and changes nothing of others
    assert (found(core), found(core, name="s", tenant="b")) == (0, 4 * BLOCKS)
    core.close(5.0)
    core = start(tmp_path)
    keeper(core).forget_others({"b": "one"})
    keeper(core).keep_under("b", "two")
    core.close(5.0)
    assert not kept_files(tmp_path)
