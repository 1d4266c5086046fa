"""A peer: another server of the OpenAI API, as a TOML file describes it, started and stopped."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
import msgspec

from bench.registry import BenchError

_STOP_SECONDS = 30.0
_POLL_SECONDS = 0.1


class Peer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `[[peer]]` of the file. One without a `command` is running already.

    `omits` are fields of a request that it refuses; without `ignore_eos` its answers may be shorter
    than asked for. With `new_connections` each request opens a connection of its own.
    """

    name: str
    url: str
    """The OpenAI base, with or without its `/v1`."""
    model: str
    command: list[str] = []
    environment: dict[str, str] = {}
    folder: str | None = None
    api_key: str = "none"
    ready_timeout_seconds: float = 300.0
    omits: list[str] = []
    new_connections: bool = False
    cache_salt: bool = False
    """Whether it keeps tenants apart by that field: `bench audit` asks without and with it."""
    adapter: str = ""
    """What a request for adapter number `{number}` has in its body, in JSON (`bench adapters`)."""

    @property
    def base_url(self) -> str:
        """The URL without its `/v1`."""
        return self.url.rstrip("/").removesuffix("/v1")


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    peer: list[Peer]


def filled_in(peer: Peer, words: Mapping[str, str]) -> Peer:
    """The peer, with what `words` say in place of them in its command, URL and model, and for
    `{port}` one that is free now.
    """
    with socket.create_server(("127.0.0.1", 0)) as one:
        words = {"{port}": str(one.getsockname()[1]), **words}

    def filled(text: str) -> str:
        for word, value in words.items():
            text = text.replace(word, value)
        return text

    return msgspec.structs.replace(
        peer,
        url=filled(peer.url),
        model=filled(peer.model),
        command=[filled(word) for word in peer.command],
    )


def read_peers(path: Path) -> list[Peer]:
    """The peers of a file. Raises `BenchError` naming what is wrong with it."""
    try:
        peers = msgspec.toml.decode(path.read_bytes(), type=_File).peer
    except (OSError, msgspec.DecodeError) as error:
        raise BenchError(f"{path}: {error}") from error
    names = [peer.name for peer in peers]
    for name in names:
        if not name.isidentifier() or name == "partywall" or names.count(name) > 1:
            raise BenchError(f"{path}: {name!r} is no name for a peer, or another has it")
    return peers


@contextmanager
def running_peer(peer: Peer) -> Iterator[tuple[int | None, float]]:
    """Start a peer, wait until it has answered a request of one token, and stop it at the end.

    Yields its process id and the seconds it took; none for one that was running already. Raises
    `BenchError` if it does not become ready.
    """
    if not peer.command:
        _wait_until_ready(peer, None)
        yield None, 0.0
        return
    with tempfile.TemporaryFile() as log:
        started = time.monotonic()
        process = _start(peer, log.fileno())
        try:
            try:
                _wait_until_ready(peer, process)
            except BenchError as error:
                log.seek(0)
                tail = log.read()[-2000:].decode(errors="replace")
                raise BenchError(f"{error}:\n{tail}") from None
            yield process.pid, time.monotonic() - started
        finally:
            _stop(process)


def _start(peer: Peer, log: int) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            peer.command,
            cwd=peer.folder,
            env=os.environ | peer.environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    except OSError as error:
        raise BenchError(f"{peer.name} cannot be started: {error}") from error


def _wait_until_ready(peer: Peer, process: subprocess.Popen[bytes] | None) -> None:
    headers = {"authorization": f"Bearer {peer.api_key}"}
    question = [{"role": "user", "content": "Are you ready?"}]
    # Greedy like all that follow: there are servers that sample for good as the first one asks.
    body = {"model": peer.model, "messages": question, "max_tokens": 1, "temperature": 0}
    refusal = ""
    deadline = time.monotonic() + peer.ready_timeout_seconds
    with httpx.Client(headers=headers, timeout=peer.ready_timeout_seconds, trust_env=False) as http:
        while True:
            try:
                answer = http.post(f"{peer.base_url}/v1/chat/completions", json=body)
                if answer.is_success:
                    return
                refusal = f": HTTP {answer.status_code}: {answer.text[:300]}"
            except httpx.HTTPError:
                pass  # it does not listen yet
            if process is not None and process.poll() is not None:
                raise BenchError(f"{peer.name} ended with status {process.returncode}")
            if time.monotonic() > deadline:
                raise BenchError(f"{peer.name} is not ready{refusal}")
            time.sleep(_POLL_SECONDS)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End it and whatever it has started: its whole session."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            continue
    process.wait()
