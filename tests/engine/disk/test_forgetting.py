"""Files go with who they are of: tenants that are deleted, and secrets that are replaced."""

from __future__ import annotations

from pathlib import Path

from engine.api import CachePolicy, Namespaces
from engine.serve.core import EngineCore
from tests.engine.disk.simulated import keeper, kept_files, pin, save, start
from tests.engine.disk.test_keeper import BLOCKS, PROMPT, found
from tests.engine.simulated_model import expected_output
from tests.engine.simulation import make_request, run_to_end


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


GROUP = b"@group".ljust(32, b".")
OF_GROUP = {"namespaces": Namespaces(shared_key=GROUP, private_key=GROUP, shared_tokens=99)}


def test_what_members_share_is_kept_for_who_leases_it_alone(tmp_path: Path) -> None:
    def started() -> EngineCore:
        core = start(tmp_path)
        keeper(core).forget_others({"a": "one", "b": "one", "c": "one"})
        return core

    core = started()
    assert found(core, name="computed", **OF_GROUP) == 0
    wish = CachePolicy(lease_s=600.0)
    core.submit(make_request("leased", PROMPT, 0, "b", cache=wish, **OF_GROUP))
    run_to_end(core)
    core.close(5.0)
    core = started()
    assert found(core, tenant="c", **OF_GROUP) == 4 * BLOCKS
    assert core.scheduler.pool.leases.num_blocks == 0, "who has leased nothing pays for nothing"
    core.forget_tenant("a")
    core.close(5.0)
    core = started()
    assert found(core, tenant="b", **OF_GROUP) == 4 * BLOCKS
    assert len(core.scheduler.pool.leases.of("b").leases) >= BLOCKS
    core.forget_tenant("b")
    core.close(5.0)
    assert not kept_files(tmp_path)
