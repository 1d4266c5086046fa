"""Follows the KV events of a replica's engine, and tells a door of its blocks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import zmq
import zmq.asyncio

from app.cluster.messages import Blocks
from engine.serve.kv_events import END, AllBlocksCleared, BlockStored, KVEventBatch

_MOST_BYTES: Final = 1 << 28
"""Of one message: the blocks of a pool of millions."""

_log = logging.getLogger(__name__)
_decode = msgspec.msgpack.Decoder(KVEventBatch).decode


class _Astray(Exception):
    """What was told does not continue what is known: it has to be told anew."""


class Follower:
    """Tells what one engine holds: what was lost on the way is asked for again.

    It is asked at times, too, whether there is more: so a last message that was lost, or a new
    engine that has nothing to tell yet, is noticed. Of one that does not answer, nothing is known.
    """

    def __init__(
        self,
        tell: Callable[[Blocks], None],
        endpoint: str,
        replay_endpoint: str,
        ask_seconds: float = 2.0,
        patience_seconds: float = 5.0,
    ) -> None:
        self.num_gaps = 0
        """How often messages were missing."""
        self._told_at = 0.0
        """When the engine told what was taken last, by its clock; 0: nothing is known."""
        self._tell_blocks = tell
        self._endpoint = endpoint
        self._replay_endpoint = replay_endpoint
        self._ask_seconds = ask_seconds
        self._patience_seconds = patience_seconds
        self._last = -1

    async def run(self) -> None:
        """Follow until cancelled; then nothing is known of the replica any more."""
        context: zmq.asyncio.Context = zmq.asyncio.Context()
        try:
            events = context.socket(zmq.SUB)
            events.set(zmq.MAXMSGSIZE, _MOST_BYTES)
            events.subscribe(b"")
            events.connect(self._endpoint)
            while True:
                await self._ask(context)
                await self._listen(events)
        finally:
            self._tell(cleared=True)
            context.destroy(linger=0)

    async def _listen(self, events: zmq.asyncio.Socket) -> None:
        """Take what is told, until it is time to ask or something is missing."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._ask_seconds
        while (left := end - loop.time()) > 0:
            if not await events.poll(int(1000 * left)):
                return
            frames = await events.recv_multipart()
            if len(frames) != 3:
                continue
            number = int.from_bytes(frames[1], "big")
            if number > self._last + 1:
                self.num_gaps += 1
                return
            if number > self._last:  # others were in what was sent again
                try:
                    await self._take(number, frames[2])
                except _Astray as error:
                    self._forget(error)
                    return

    async def _ask(self, context: zmq.asyncio.Context) -> None:
        """Have all sent that follows the last number: or, without that, all that is there."""
        socket = context.socket(zmq.DEALER)
        try:
            socket.set(zmq.MAXMSGSIZE, _MOST_BYTES)
            socket.connect(self._replay_endpoint)
            await socket.send_multipart([b"", (self._last + 1).to_bytes(8, "big")])
            while True:
                async with asyncio.timeout(self._patience_seconds):
                    frames = await socket.recv_multipart()
                if len(frames) != 4:
                    raise _Astray("an answer of other parts")
                if frames[2] == END:
                    return
                await self._take(int.from_bytes(frames[2], "big"), frames[3])
        except (TimeoutError, _Astray) as error:
            self._forget(error)
        finally:
            socket.close(linger=0)

    async def _take(self, number: int, payload: bytes) -> None:
        try:
            batch = _decode(payload)
        except msgspec.MsgspecError as error:
            raise _Astray(str(error)) from error
        events, self._told_at = batch.events, batch.ts
        is_whole = bool(events) and isinstance(events[0], AllBlocksCleared)
        if number != self._last + 1 and not is_whole:
            raise _Astray(f"number {number} follows {self._last}")
        for event in events:
            if isinstance(event, AllBlocksCleared):
                self._tell(cleared=True)
            elif isinstance(event, BlockStored):
                self._tell(stored=event.block_hashes)
            else:
                self._tell(removed=event.block_hashes)
            if is_whole:  # it may be long, and the loop has others to serve
                await asyncio.sleep(0)
        self._last = number

    def _forget(self, why: Exception) -> None:
        if self._last >= 0:
            _log.warning("nothing is known of the replica: %s", str(why) or "no answer")
        self._told_at = 0.0
        self._tell(cleared=True)
        self._last = -1

    def _tell(
        self, stored: Sequence[bytes] = (), removed: Sequence[bytes] = (), *, cleared: bool = False
    ) -> None:
        self._tell_blocks(Blocks([*stored], [*removed], cleared, self._told_at, self.num_gaps))
