"""What the pool holds, told to whoever routes by it: KV events in vLLM's format over ZeroMQ.

As vLLM 0.32 publishes them (vllm/distributed/kv_events.py): frames (topic, 8-byte sequence number,
MessagePack), and a ROUTER that sends again from a number asked for, up to an end mark. Two things
are ours, and any reader of that format gets on with them. Who asks for what is not at hand any more
gets one batch that clears all and stores what is there now. And numbers start at the microseconds
of the clock, so that those of an engine that is gone are never taken for its successor's.
Token ids are left out: they are the tenants' prompts. Hashes are keyed, and tell nothing of them.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

import msgspec
import zmq

from engine.api import EngineError
from engine.blocks.changes import Change, Changes
from engine.blocks.tiers import Tiers
from engine.config import EngineConfig

END: Final = (-1).to_bytes(8, "big", signed=True)
"""In place of a sequence number: nothing more is sent again."""
_DEVICE: Final = "GPU"
"""vLLM's word for the memory that is computed from, whatever the device is."""
_MOST_HELD: Final = 512
"""Batches that are sent again one by one; fewer than a socket queues, so that none is dropped."""
_MOST_QUEUED: Final = 4096
_MOST_IN_EVENT: Final = 1024
_WAIT_SECONDS: Final = 0.02
_LINGER_SECONDS: Final = 1.0

_log = logging.getLogger(__name__)


class BlockStored(msgspec.Struct, omit_defaults=True, tag=True):
    """These blocks can be found, each the child of the one before it."""

    block_hashes: list[bytes]
    parent_block_hash: bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None


class BlockRemoved(msgspec.Struct, omit_defaults=True, tag=True):
    """These blocks cannot be found any more."""

    block_hashes: list[bytes]
    medium: str | None


class AllBlocksCleared(msgspec.Struct, omit_defaults=True, tag=True):
    """Nothing can be found any more."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class KVEventBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    """What has changed since the batch before."""

    ts: float
    events: list[Event]
    data_parallel_rank: int | None = None


def events_of(changes: Iterable[Change], block_size: int) -> list[Event]:
    """The changes in their order, as few events."""
    events: list[Event] = []
    for change in changes:
        last = events[-1] if events else None
        if change.is_stored:
            if (
                isinstance(last, BlockStored)
                and last.block_hashes[-1] == change.parent
                and len(last.block_hashes) < _MOST_IN_EVENT
            ):
                last.block_hashes.append(change.block_hash)
            else:
                hashes, parent = [change.block_hash], change.parent
                events.append(BlockStored(hashes, parent, [], block_size, None, _DEVICE, None))
        elif isinstance(last, BlockRemoved) and len(last.block_hashes) < _MOST_IN_EVENT:
            last.block_hashes.append(change.block_hash)
        else:
            events.append(BlockRemoved([change.block_hash], _DEVICE))
    return events


class KVEventPublisher:
    """Publishes a pool's changes from a thread of its own; the engine's loop only hands them over.

    Raises `EngineError`, naming the setting, for an endpoint that cannot be bound.
    """

    def __init__(
        self,
        config: EngineConfig,
        changes: Changes,
        block_size: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._changes = changes
        self._block_size = block_size
        self._topic = config.kv_events_topic.encode()
        self._clock = clock
        self._present: dict[bytes, Change] = {}
        self._held: deque[tuple[int, bytes]] = deque(maxlen=_MOST_HELD)
        self._last = int(clock() * 1e6)
        self._encode = msgspec.msgpack.Encoder().encode
        self._queue: queue.Queue[list[Change] | None] = queue.Queue(_MOST_QUEUED)
        self._context: zmq.Context[zmq.SyncSocket] = zmq.Context()
        try:
            self._pub = self._bind(zmq.PUB, "kv_events", config.kv_events)
            self._replay = self._bind(zmq.ROUTER, "kv_events_replay", config.kv_events_replay)
        except EngineError:
            self._context.destroy(linger=0)
            raise
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)
        self._thread.start()

    def publish(self) -> None:
        """Hand over what has changed. Waits only for a thread that is thousands of steps behind."""
        changes = self._changes.take()
        if changes and self._thread.is_alive():
            self._queue.put(changes)

    def close(self) -> None:
        """Publish what has been handed over, and let go of the endpoints."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    def _bind(self, kind: int, setting: str, endpoint: str | None) -> zmq.SyncSocket | None:
        if endpoint is None:
            return None
        socket = self._context.socket(kind)
        try:
            socket.bind(endpoint)
        except zmq.ZMQError as error:
            raise EngineError(f"{setting}: cannot bind {endpoint}: {error}") from error
        return socket

    def _run(self) -> None:
        is_over = False
        while not is_over:
            try:
                changes = self._queue.get(timeout=_WAIT_SECONDS)
            except queue.Empty:
                changes = []
            is_over = changes is None
            try:
                if changes:
                    self._send(changes)
                if self._replay is not None and self._replay.poll(0):
                    self._send_again(self._replay)
            except (zmq.ZMQError, ValueError):  # readers find a gap in the numbers and ask
                _log.exception("KV events are not told")
        self._context.destroy(linger=int(1000 * _LINGER_SECONDS))

    def _send(self, changes: list[Change]) -> None:
        for change in changes:
            if change.is_stored:
                self._present[change.block_hash] = change
            else:
                self._present.pop(change.block_hash, None)
        self._last += 1
        payload = self._payload(events_of(changes, self._block_size))
        self._held.append((self._last, payload))
        if self._pub is not None:  # a PUB never waits: it drops what a slow reader has no room for
            self._pub.send_multipart([self._topic, self._last.to_bytes(8, "big"), payload])

    def _send_again(self, replay: zmq.SyncSocket) -> None:
        """Answer who asks for all from a number on."""
        frames = replay.recv_multipart()
        if len(frames) != 3 or len(frames[2]) != 8:
            return
        reader, first = frames[0], int.from_bytes(frames[2], "big")
        oldest = self._held[0][0] if self._held else self._last + 1
        if oldest <= first <= self._last + 1:
            answers = [one for one in self._held if one[0] >= first]
        else:
            stored = events_of(self._present.values(), self._block_size)
            answers = [(self._last, self._payload([AllBlocksCleared(), *stored]))]
        for number, payload in answers:
            replay.send_multipart([reader, b"", self._topic, number.to_bytes(8, "big"), payload])
        replay.send_multipart([reader, b"", b"", END, b""])

    def _payload(self, events: list[Event]) -> bytes:
        return self._encode(KVEventBatch(self._clock(), events, 0))


def make_publisher(config: EngineConfig, tiers: Tiers) -> KVEventPublisher | None:
    """Who publishes the changes of the pool, if that is configured."""
    if tiers.changes is None:
        return None
    return KVEventPublisher(config, tiers.changes, tiers.block_size)
