"""Engines that die at any moment, and disks that lose or change anything: never a wrong block.

The simulated model reads its tokens back from its memory, and asserts that they are the sequence's:
a wrong block shows at once.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.api import EVERYTHING, CachePolicy, Kind, Namespaces, TenantShare
from engine.serve.core import EngineCore
from tests.engine.disk.simulated import keeper, kept_files, spoil, start
from tests.engine.simulated_model import expected_output, random_prompt
from tests.engine.simulation import make_request

ALIKE = (EVERYTHING,)
WINDOWS = (EVERYTHING, Kind(window=6, pages=2), Kind(window=3))
STATES = (EVERYTHING, Kind(pages=2, is_state=True))
STATES_ALONE = (Kind(pages=3, is_state=True),)
WINDOWS_ALONE = (Kind(window=9), Kind(window=5, pages=2))


class Life:
    """One engine after the other on the same folder, with the same few prompts."""

    def __init__(self, folder: Path, seed: int, kinds: tuple[Kind, ...] = ALIKE) -> None:
        self.rng, self.folder, self.kinds = random.Random(seed), folder, kinds
        self.prompts = [random_prompt(self.rng, self.rng.randrange(20, 60)) for _ in range(3)]
        self.prompts += [one[:24] + random_prompt(self.rng, 20) for one in self.prompts]
        self.secrets = {"a": "one", "b": "one"}
        self.num_requests = 0
        self.num_restored = 0
        self.core = self._start()

    def _start(self) -> EngineCore:
        self.hosts = self.rng.choice([0, 0, 12])
        core = start(
            self.folder,
            num_blocks=self.rng.choice([40, 96]),
            num_host_blocks=self.hosts,
            runs_ahead=self.rng.random() < 0.5,
            kept_bytes=self.rng.choice([1 << 20, 4 * 4096 * len(self.kinds)]),
            kinds=self.kinds,
        )
        if self.rng.random() < 0.7:  # else nobody is there yet to say whose files may stay
            keeper(core).forget_others(dict(self.secrets))
        return core

    def live(self, steps: int) -> None:
        """Requests come and go; every answer is what it is alone."""
        rng = self.rng
        self.expected: dict[tuple[str, int], list[int]] = {}
        outputs: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        for _ in range(steps):
            if rng.random() < 0.3:
                self._submit()
            elif rng.random() < 0.03:
                self._forget(rng.choice("ab"))
            elif self.expected and rng.random() < 0.05:
                name, index = rng.choice(list(self.expected))
                self.core.abort(name, index)
                del self.expected[name, index]
            for delta in self.core.step():
                assert delta.error is None or "pin" in delta.error
                one = delta.request_id, delta.index
                outputs[one].extend(delta.token_ids)
                answer = self.expected.pop(one, None) if delta.finish_reason else None
                assert answer in (None, outputs[one]) or delta.error
            self.core.scheduler.check()
            keeper(self.core).shelf.check()

    def _submit(self) -> None:
        rng, name, tenant = self.rng, f"r{self.num_requests}", self.rng.choice("ab")
        prompt, fields = rng.choice(self.prompts), dict[str, object]()
        self.num_requests += 1
        if rng.random() < 0.4:  # of the group that both are in
            shared_key, private_key = (one.encode().ljust(32, b".") for one in ("@", tenant))
            fields["namespaces"] = Namespaces(
                shared_key=shared_key, private_key=private_key, shared_tokens=24
            )
        if rng.random() < 0.3:
            pin = f"{tenant}/{rng.randrange(2)}"
            self.core.submit(make_request(name, prompt, 0, tenant, pin=pin, **fields))
            return
        wish, count = CachePolicy(lease_s=rng.choice([0.0, 60.0])), rng.choice([1, 1, 3])
        share = TenantShare(max_leased_blocks=rng.choice([None, 4]))
        fields |= {"num_sequences": count, "share": share}
        self.core.submit(make_request(name, prompt, 4, tenant, cache=wish, **fields))
        self.expected |= {(name, one): expected_output(prompt, 4, one) for one in range(count)}

    def _forget(self, tenant: str) -> None:
        """A tenant is deleted, or has another secret from now on."""
        self.core.forget_tenant(tenant)
        if self.rng.random() < 0.5:
            self.secrets[tenant] += "'"
            keeper(self.core).keep_under(tenant, self.secrets[tenant])

    def die(self) -> None:
        """The engine is gone, and the disk has kept what it likes."""
        rng = self.rng
        self.num_restored += self.core.stats().restored_blocks
        self.core.close(rng.choice([0.0, 5.0]))
        for path in kept_files(self.folder):
            content, chance = bytearray(path.read_bytes()), rng.random()
            if chance < 0.1:
                spoil(path, content[: rng.randrange(len(content))])
            elif chance < 0.2:
                content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
                spoil(path, content)
            elif chance < 0.25:
                path.unlink()
            elif chance < 0.3:
                os.replace(path, rng.choice(kept_files(self.folder)))
        self.core = self._start()


@pytest.mark.parametrize(
    "kinds",
    [
        WINDOWS,
        WINDOWS_ALONE,
        pytest.param(STATES, marks=pytest.mark.exhaustive),
        pytest.param(STATES_ALONE, marks=pytest.mark.exhaustive),
    ],
)
def test_no_block_of_any_kind_is_ever_wrong(tmp_path: Path, kinds: tuple[Kind, ...]) -> None:
    lives = [Life(tmp_path / f"{seed}", seed, kinds) for seed in (1, 8)]
    for life in lives:
        for _ in range(12):
            life.live(40)
            life.die()
    assert any(life.num_restored for life in lives), "nothing was ever read"


@pytest.mark.parametrize("seed", range(3))
def test_no_block_is_ever_wrong(tmp_path: Path, seed: int) -> None:
    life = Life(tmp_path, seed)
    for _ in range(12):
        life.live(40)
        life.die()
    assert life.num_restored, "nothing was ever read"


@pytest.mark.exhaustive
@pytest.mark.parametrize("kinds", [ALIKE, WINDOWS, WINDOWS_ALONE])
@pytest.mark.parametrize("seed", range(100, 125))
def test_no_block_is_ever_wrong_in_long_lives(
    tmp_path: Path, seed: int, kinds: tuple[Kind, ...]
) -> None:
    life = Life(tmp_path, seed, kinds)
    for _ in range(60):
        life.live(60)
        life.die()


WRITERS = """
import os, random, sys, time
from pathlib import Path
from tests.engine.disk.simulated import start, pin, save
from tests.engine.simulated_model import random_prompt
os.fsync = lambda _: time.sleep(0.003)  # as on a disk, and not in memory: many die there
for folder in sys.stdin:
    if not os.fork():
        core = start(Path(folder.strip()), num_blocks=1024)
        print(os.getpid(), flush=True)
        for count in range(40):
            pin(core, random_prompt(random.Random(count), 60 + count))
            save(core)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""
"""Forks a process for each folder that it is told: one that keeps blocks there."""


class Writers:
    """Processes that keep blocks, killed in the middle of it."""

    def __init__(self) -> None:
        command, pipe = [sys.executable, "-c", WRITERS], subprocess.PIPE
        self._forks = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        self.num_killed = 0

    def kill_one(self, folder: Path, after_seconds: float) -> None:
        """Have one write for so long, unless it comes to its end before."""
        assert self._forks.stdin is not None
        print(folder, file=self._forks.stdin, flush=True)
        writer = self._read()
        time.sleep(after_seconds)
        with contextlib.suppress(ProcessLookupError):  # it has come to its end
            os.kill(writer, signal.SIGKILL)
        status = self._read()
        assert status in (0, -signal.SIGKILL)
        self.num_killed += status != 0

    def close(self) -> None:
        self._forks.communicate()

    def _read(self) -> int:
        assert self._forks.stdout is not None
        return int(self._forks.stdout.readline())


@pytest.fixture
def writers() -> Iterator[Writers]:
    writers = Writers()
    yield writers
    writers.close()


def read_all(folder: Path) -> int:
    """What an engine behind the killed one finds, and answers right; how many blocks that is."""
    core = start(folder, num_blocks=512)
    for count in range(40):
        prompt = random_prompt(random.Random(count), 60 + count)
        core.submit(make_request(f"{count}", prompt, 3))
        output: list[int] = []
        while not core.is_idle:
            for delta in core.step():
                output += delta.token_ids
            core.scheduler.check()
        assert output == expected_output(prompt, 3)
    keeper(core).shelf.check()
    return core.stats().restored_blocks


def test_what_killed_processes_leave_is_right(tmp_path: Path, writers: Writers) -> None:
    for seconds in (0.0, 0.02, 0.05, 0.1, 0.15):
        writers.kill_one(tmp_path, seconds)
    assert read_all(tmp_path) > 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(4))
def test_what_two_hundred_killed_processes_leave_is_right(
    tmp_path: Path, writers: Writers, seed: int
) -> None:
    rng, num_cut_off = random.Random(seed), 0
    # It is by chance that a kill comes while a file is written; some must.
    while writers.num_killed < 50 or (not num_cut_off and writers.num_killed < 500):
        folder = tmp_path / f"{writers.num_killed // 10}"
        writers.kill_one(folder, rng.uniform(0.0, 0.3))
        num_cut_off += len(list(folder.glob("*/*.part")))
        read_all(folder)
    assert num_cut_off, "no file was being written when its writer was killed"
