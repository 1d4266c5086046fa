"""The compiled library: how it is found, and that its thread pool runs every part once."""

from __future__ import annotations

import ctypes
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from kernels.native import library

Task = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)

needs_library = pytest.mark.skipif(not library.available(), reason="kernels/native is not built")


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    library.set_threads(request.param)
    yield request.param
    library.set_threads(torch.get_num_threads())


def parts_run(num_parts: int, nested: int = 0) -> Counter[int]:
    """How often each part of a task ran; every part runs a task of `nested` parts, counted too."""
    parallel = library.function("pw_parallel", Task, ctypes.c_void_p, ctypes.c_int)
    ran: list[int] = []

    def task(_: int, part: int, total: int) -> None:
        ran.append(part if total == num_parts else num_parts + part)
        if nested and total == num_parts:
            parallel(callback, None, nested)

    callback = Task(task)
    parallel(callback, None, num_parts)
    return Counter(ran)


@needs_library
def test_every_part_of_a_task_runs_once(threads: int) -> None:
    for num_parts in (0, 1, 2, 3, 50):
        assert parts_run(num_parts) == dict.fromkeys(range(num_parts), 1)


@needs_library
def test_a_task_within_a_task_runs_in_its_caller(threads: int) -> None:
    ran = parts_run(4, nested=3)
    assert ran == dict.fromkeys(range(4), 1) | dict.fromkeys(range(4, 7), 4)


@needs_library
def test_callers_of_the_pool_take_turns(threads: int) -> None:
    with ThreadPoolExecutor(4) as callers:
        results = list(callers.map(parts_run, [7] * 40))
    assert all(ran == dict.fromkeys(range(7), 1) for ran in results)


@needs_library
def test_a_forked_process_has_a_pool_of_its_own(threads: int) -> None:
    parts_run(5)
    child = os.fork()
    if child == 0:
        os._exit(parts_run(5) != dict.fromkeys(range(5), 1))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@needs_library
def test_threads_without_work_sleep(threads: int) -> None:
    parts_run(5)
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.2)
    assert time.process_time() - before < 0.1


def test_a_library_of_other_sources_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    built = next(Path(library.__file__).parent.glob("_library*.so"), None)
    if built is None:
        pytest.skip("kernels/native is not built")
    package = tmp_path / "native"
    shutil.copytree(Path(library.__file__).parent, package)
    copy = package / built.name
    assert library._checked(copy, package) is not None
    (package / "pool.c").write_text("changed")
    assert library._checked(copy, package) is None
    assert "older than its sources" in caplog.text


def test_a_library_that_cannot_be_loaded_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = tmp_path / "_library.so"
    broken.write_bytes(b"not a library")
    assert library._checked(broken, tmp_path) is None
    assert "cannot be used" in caplog.text


@pytest.mark.parametrize("right", [True, False])
def test_tiles_are_used_only_if_they_are_right(
    right: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(library, "level", lambda: "amx")
    limits: list[str] = []
    monkeypatch.setattr(library, "limit_level", limits.append)
    library.trust_tiles(lambda: torch.tensor(1.0 + (limits[-1] == "amx" and not right)))
    assert limits[-1] == ("amx" if right else "avx512_bf16")
    assert ("AMX gives wrong results" in caplog.text) != right
