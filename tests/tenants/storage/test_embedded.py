"""The embedded store: private, durable, and never alive without its owner."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from urllib.parse import unquote, urlsplit

import psutil
import pytest
import redis

from tenants.at_rest.pepper import Peppers
from tenants.errors import StoreFailed, StoreInUse
from tenants.storage.connection import open_redis
from tenants.storage.embedded import EmbeddedStore, attach_or_start
from tenants.store import TenantStore
from tests.tenants.conftest import who

ROOT = Path(__file__).parents[3]
_SECONDS = 20.0


def ask(url: str, *command: str) -> object:
    with redis.Redis.from_url(url) as client:
        return client.execute_command(*command)


def write(url: str) -> None:
    """Set `k` to `v` and wait until that is on disk, which may take a second otherwise."""
    with redis.Redis.from_url(url) as client:
        client.set("k", "v")
        assert client.execute_command("WAITAOF", 1, 0, 20_000)[0] == 1


def until(condition: Callable[[], object]) -> None:
    """Wait until `condition` holds; it must within twenty seconds."""
    deadline = time.monotonic() + _SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def gone(pid: int) -> bool:
    return not is_running(pid)


def answers(url: str) -> bool:
    with contextlib.suppress(redis.ConnectionError, redis.ResponseError):
        return ask(url, "PING") is True
    return False


@contextlib.contextmanager
def owner(data_dir: Path, code: str = "sys.stdin.read()") -> Iterator[tuple[int, int, str]]:
    """Another process that owns `data_dir`: its pid, its server's pid and URL."""
    start = (
        "import os, sys; from pathlib import Path\n"
        "from tenants.storage.embedded import EmbeddedStore\n"
        "store = EmbeddedStore(Path(sys.argv[1]))\n"
        "print(store.server_pid, store.url, flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", start + code, str(data_dir)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        server_pid, url = process.stdout.readline().split()
        yield process.pid, int(server_pid), url
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


async def test_a_tenant_survives_a_restart(tmp_path: Path) -> None:
    with EmbeddedStore(tmp_path) as store:
        link = await open_redis(store.url)
        tenant, key = await TenantStore(link, Peppers(b"p" * 32)).create_tenant("acme")
        await link.close()
    with EmbeddedStore(tmp_path) as store:
        link = await open_redis(store.url)
        assert await who(TenantStore(link, Peppers(b"p" * 32)), key) == tenant
        await link.close()


def test_it_listens_on_no_port_and_lets_nobody_else_in(tmp_path: Path) -> None:
    with EmbeddedStore(tmp_path / "data") as store:
        parts = urlsplit(store.url)
        assert parts.scheme == "unix"
        socket_path = Path(unquote(parts.path))
        folder = socket_path.parent.stat()
        assert (stat.S_IMODE(folder.st_mode), folder.st_uid) == (0o700, os.getuid())
        assert stat.S_IMODE(socket_path.stat().st_mode) == 0o700
        connections = psutil.Process(store.server_pid).net_connections("inet")
        assert connections == []
        assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700
        kinds = {path.parent.name for path in (tmp_path / "data" / "store").rglob("*.aof")}
        assert kinds == {"appendonlydir"}
    assert not socket_path.parent.exists()


def test_a_very_long_data_dir_with_odd_characters_is_served(tmp_path: Path) -> None:
    data_dir = tmp_path / ("d" * 120) / 'a b"c%20\u00e4' / ("e" * 120)
    with EmbeddedStore(data_dir) as store:
        write(store.url)
    with attach_or_start(data_dir) as url:
        assert ask(url, "GET", "k") == b"v"


def test_a_folder_reached_by_two_names_has_one_owner(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with EmbeddedStore(tmp_path / "real") as store:
        with pytest.raises(StoreInUse):
            EmbeddedStore(tmp_path / "link", handover_seconds=0)
        with attach_or_start(tmp_path / "link") as url:
            assert url == store.url


def test_two_data_dirs_have_two_stores(tmp_path: Path) -> None:
    with EmbeddedStore(tmp_path / "a") as one, EmbeddedStore(tmp_path / "b") as two:
        write(one.url)
        assert ask(two.url, "GET", "k") is None


def test_a_second_owner_is_refused_with_the_firsts_pid_and_harms_nothing(tmp_path: Path) -> None:
    with owner(tmp_path) as (pid, server_pid, url):
        with pytest.raises(StoreInUse, match=str(pid)) as caught:
            EmbeddedStore(tmp_path, handover_seconds=0)
        assert caught.value.pid == pid
        assert answers(url)
        assert is_running(server_pid)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_server_dies_with_its_owner_and_the_data_lives_on(
    tmp_path: Path, number: signal.Signals
) -> None:
    with owner(tmp_path) as (pid, server_pid, url):
        write(url)
        os.kill(pid, number)
        until(partial(gone, server_pid))
    with EmbeddedStore(tmp_path) as store:
        assert ask(store.url, "GET", "k") == b"v"


def test_the_server_dies_with_an_owner_that_leaves_without_closing_it(tmp_path: Path) -> None:
    for code in ("sys.exit()", "os._exit(0)", "os.abort()"):
        with owner(tmp_path, code) as (_, server_pid, _):
            until(partial(gone, server_pid))


def test_the_server_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    stores: list[EmbeddedStore] = []
    thread = threading.Thread(target=lambda: stores.append(EmbeddedStore(tmp_path)))
    thread.start()
    thread.join()
    with stores[0] as store:
        write(store.url)
        assert ask(store.url, "GET", "k") == b"v"


def test_a_new_owner_waits_for_the_last_ones_server_to_be_gone(tmp_path: Path) -> None:
    with owner(tmp_path) as (pid, server_pid, url):
        write(url)
        os.kill(server_pid, signal.SIGSTOP)
        os.kill(pid, signal.SIGKILL)
        with EmbeddedStore(tmp_path, handover_seconds=_SECONDS) as store:
            assert not is_running(server_pid)
            assert ask(store.url, "GET", "k") == b"v"


def test_a_server_that_dies_alone_comes_back_with_its_data(tmp_path: Path) -> None:
    with EmbeddedStore(tmp_path) as store:
        write(store.url)
        for _ in range(2):
            dead = store.server_pid
            os.kill(dead, signal.SIGKILL)
            until(partial(gone, dead))
            until(lambda: answers(store.url))
            assert ask(store.url, "GET", "k") == b"v"
        last = store.server_pid
    assert not is_running(last)


def test_closing_beats_restarting(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path)
    dead = store.server_pid
    os.kill(dead, signal.SIGKILL)
    store.close()
    store.close()
    # The directory is free, and stays ours once we have it.
    with EmbeddedStore(tmp_path, handover_seconds=0) as ours:
        assert answers(ours.url)


def test_a_server_that_cannot_start_says_why_and_gives_the_folder_up(tmp_path: Path) -> None:
    with EmbeddedStore(tmp_path) as store:
        write(store.url)
    (log,) = (tmp_path / "store" / "appendonlydir").glob("*.incr.aof")
    good = log.read_bytes()
    log.write_bytes(b"this is no append-only file\r\n" * 9)
    with pytest.raises(StoreFailed, match=r"append only file.*; see .*valkey\.log$"):
        EmbeddedStore(tmp_path)
    log.write_bytes(good)
    with EmbeddedStore(tmp_path, handover_seconds=0) as store:
        assert ask(store.url, "GET", "k") == b"v"


def test_a_half_written_last_command_costs_that_command_only(tmp_path: Path) -> None:
    with EmbeddedStore(tmp_path) as store:
        write(store.url)
    (log,) = (tmp_path / "store" / "appendonlydir").glob("*.incr.aof")
    with log.open("ab") as file:
        file.write(b"*3\r\n$3\r\nSET\r\n$1\r\nj")
    with EmbeddedStore(tmp_path) as store:
        assert (ask(store.url, "GET", "k"), ask(store.url, "GET", "j")) == (b"v", None)


def test_a_command_uses_the_running_owners_server(tmp_path: Path) -> None:
    with owner(tmp_path) as (_, server_pid, url):
        write(url)
        with attach_or_start(tmp_path) as attached:
            assert attached == url
            assert ask(attached, "GET", "k") == b"v"
        assert is_running(server_pid)
        assert answers(url)


def test_no_file_of_it_can_be_read_by_others_not_even_an_earlier_versions(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with EmbeddedStore(tmp_path) as store:
            write(store.url)
        files = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
        assert len(files) >= 3
        modes = {path: stat.S_IMODE(path.stat().st_mode) for path in files}
        assert [path for path, mode in modes.items() if mode & 0o077] == []
        for path in files:
            path.chmod(0o644)
        with EmbeddedStore(tmp_path):
            pass
        assert {stat.S_IMODE(path.stat().st_mode) for path in files if path.exists()} == {0o600}
    finally:
        os.umask(before)


def test_a_command_finds_the_owners_server_though_its_disk_is_full(tmp_path: Path) -> None:
    with EmbeddedStore(tmp_path) as store:
        (tmp_path / "store" / "dump.rdb" / "in_the_way").mkdir(parents=True)
        ask(store.url, "CONFIG", "SET", "save", "3600 1")
        ask(store.url, "BGSAVE")
        until(lambda: not answers(store.url))
        with attach_or_start(tmp_path) as attached:
            assert attached == store.url
        ask(store.url, "CONFIG", "SET", "save", "")  # nothing holds up its end


def test_a_command_without_an_owner_has_a_server_for_its_own_time(tmp_path: Path) -> None:
    with attach_or_start(tmp_path) as url:
        write(url)
    assert not answers(url)
    with EmbeddedStore(tmp_path, handover_seconds=0) as store:
        assert ask(store.url, "GET", "k") == b"v"


def test_a_command_finds_its_owner_wherever_its_own_temporary_folder_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data_dir, other = tmp_path / "data", tmp_path / "tmp"
    other.mkdir()
    with owner(data_dir) as (_, _, url):
        monkeypatch.setattr("tempfile.tempdir", str(other))
        with attach_or_start(data_dir) as attached:
            assert attached == url


def test_a_command_is_told_about_an_owner_that_does_not_answer(tmp_path: Path) -> None:
    with owner(tmp_path) as (pid, server_pid, _):
        os.kill(server_pid, signal.SIGSTOP)
        with pytest.raises(StoreInUse, match=str(pid)), attach_or_start(tmp_path):
            pytest.fail("attached to a stalled server")


def test_a_socket_folder_of_somebody_elses_making_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    data_dir = tmp_path / "data"
    with EmbeddedStore(data_dir) as store:
        folder = Path(unquote(urlsplit(store.url).path)).parent
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    with pytest.raises(StoreFailed, match="only this user"):
        EmbeddedStore(data_dir)
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(StoreFailed):
        EmbeddedStore(data_dir)
    assert data_dir.exists()


def fill(client: redis.Redis) -> None:
    for number in range(64):
        client.set(f"pw:{number}", b"x" * 2**20, ex=60)


def test_a_full_store_refuses_writes_and_keeps_what_it_has(tmp_path: Path) -> None:
    with (
        EmbeddedStore(tmp_path, max_memory_bytes=16 * 1024**2) as store,
        redis.Redis.from_url(store.url) as client,
    ):
        client.set("pw:tenant", "kept")
        with pytest.raises(redis.OutOfMemoryError):
            fill(client)
        assert client.get("pw:tenant") == b"kept"
        assert client.exists("pw:0")
