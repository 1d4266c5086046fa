"""What a container may use, read from a tree of control groups like the kernel's."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from engine.api import EVERYTHING
from engine.model.kv_memory import Layout, automatic_kv_bytes
from engine.system import control_groups
from engine.system.control_groups import available_memory, cpu_quotas

GB, MB = 10**9, 10**6
KV_TOKEN_BYTES = 23_040


class Tree:
    """The control groups of a process on a machine with 64 GB, filled in by a test."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        monkeypatch.setattr(control_groups, "_MEMBERSHIP", folder / "membership")
        monkeypatch.setattr(control_groups, "_MOUNT", folder / "mount")
        monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=64 * GB))

    def belong(self, *lines: str) -> None:
        (self.folder / "membership").write_text("".join(f"{line}\n" for line in lines))

    def write(self, group: str, **files: object) -> None:
        path = self.folder / "mount" / group
        path.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            kind, _, rest = name.partition("_")
            (path / f"{kind}.{rest}").write_text(f"{content}\n")


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    return Tree(tmp_path, monkeypatch)


@pytest.mark.parametrize(("quota", "cores"), [(50_000, 1), (250_000, 3), (900_000, 9)])
def test_cores_are_what_the_quota_of_any_group_above_is_worth(
    tree: Tree, quota: int, cores: int
) -> None:
    tree.belong("0::/outer/inner")
    tree.write("outer/inner", cpu_max="max 100000")
    assert list(cpu_quotas()) == []
    tree.write("outer", cpu_max=f"{quota} 100000")
    assert list(cpu_quotas()) == [cores]


@pytest.mark.parametrize("mount", ["cpu,cpuacct", "cpu"])
def test_cores_of_version_1_are_read_where_the_system_mounts_them(tree: Tree, mount: str) -> None:
    tree.belong("3:cpu,cpuacct:/docker/abc", "0::/")
    tree.write(f"{mount}/docker/abc", cpu_cfs_quota_us=-1, cpu_cfs_period_us=100_000)
    assert list(cpu_quotas()) == []
    tree.write(f"{mount}/docker/abc", cpu_cfs_quota_us=150_000)
    assert list(cpu_quotas()) == [2]


def test_groups_may_have_names_in_any_encoding(tree: Tree) -> None:
    name = b"caf\xe9"
    (tree.folder / "membership").write_bytes(b"0::/" + name + b"\n")
    tree.write(os.fsdecode(name), cpu_max="50000 100000")
    assert list(cpu_quotas()) == [1]


def test_a_machine_without_control_groups_has_no_limits(tree: Tree) -> None:
    assert list(cpu_quotas()) == []
    assert available_memory() == 64 * GB
    tree.belong("0::/")
    assert available_memory() == 64 * GB


def test_memory_is_what_the_tightest_group_has_left(tree: Tree) -> None:
    tree.belong("0::/pod/container")
    tree.write("pod/container", memory_max="max", memory_current=300 * MB)
    assert available_memory() == 64 * GB
    tree.write("pod", memory_max=2 * GB, memory_current=500 * MB)
    assert available_memory() == 1500 * MB
    tree.write("pod/container", memory_max=1 * GB, memory_high="max")
    assert available_memory() == 700 * MB
    tree.write("pod/container", memory_high=800 * MB)
    assert available_memory() == 500 * MB
    tree.write("pod/container", memory_current=900 * MB)
    assert available_memory() == 0


@pytest.mark.parametrize(("mapped", "free"), [(0, 970), (100, 870), (400, 670)])
def test_files_that_can_be_dropped_from_memory_count_as_free(
    tree: Tree, mapped: int, free: int
) -> None:
    files = {"inactive_file": 270 * MB, "active_file": 300 * MB}
    tree.belong("0::/")
    stat = files | {"anon": 30 * MB, "file_mapped": mapped * MB}
    lines = "\n".join(f"{name} {value}" for name, value in stat.items())
    tree.write("", memory_max=1 * GB, memory_current=600 * MB, memory_stat=lines)
    assert available_memory() == free * MB
    tree.belong("4:memory:/docker/abc")
    stat = {f"total_{name}": value for name, value in files.items()} | {
        "inactive_file": 5,
        "total_mapped_file": mapped * MB,
    }
    lines = "\n".join(f"{name} {value}" for name, value in stat.items())
    limit = {"memory_limit_in_bytes": 1 * GB, "memory_usage_in_bytes": 600 * MB}
    tree.write("memory", **limit, memory_stat=lines)
    tree.write("", memory_max="max")
    assert available_memory() == free * MB


def test_memory_of_version_1_is_read_from_outside_and_inside_of_a_container(tree: Tree) -> None:
    tree.belong("4:memory:/docker/abc", "0::/")
    no_limit = {"memory_limit_in_bytes": 2**63 - 4096, "memory_usage_in_bytes": 20 * GB}
    limit = {"memory_limit_in_bytes": 1100 * MB, "memory_usage_in_bytes": 500 * MB}
    tree.write("memory", **no_limit)
    tree.write("memory/docker/abc", **limit, memory_stat=f"total_inactive_file {100 * MB}")
    assert available_memory() == 700 * MB
    # A container has its own group mounted at the top, under the path that the host knows.
    tree.belong("4:memory:/docker/elsewhere", "0::/")
    tree.write("memory", **limit)
    assert available_memory() == 600 * MB


def test_an_engine_in_a_container_takes_its_blocks_from_what_the_container_has(tree: Tree) -> None:
    def chosen() -> int:
        return automatic_kv_bytes(Layout((EVERYTHING,), 16, 16 * KV_TOKEN_BYTES, 256), 8192)

    assert chosen() == 8 * GB
    tree.belong("4:memory:/docker/abc")
    tree.write("memory", memory_limit_in_bytes=4 * GB, memory_usage_in_bytes=800 * MB)
    assert chosen() == 400 * MB
