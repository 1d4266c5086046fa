"""A process' usage in files that outlive it: what was counted, and what each running request has.

A kill loses nothing that was written, also where it was not synced: the machine has it. Records
of a log say what was counted, each whole or not at all. A running request has a slot in a file that
is mapped into memory, so that a token costs no system call. Its owner holds a lock on the slots,
which ends with the process: whoever gets it goes on where that has stopped.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import secrets
import zlib
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Final

import msgspec

from tenants.usage.ledger import Ledger, Record

_log = logging.getLogger(__name__)
_SLOT_BYTES: Final = 512
_SLOTS_AT_ONCE: Final = 256
_HEAD_WORDS: Final = 5
_NUMBER, _LENGTH, _CACHED, _WRITTEN, _OUTPUT = range(_HEAD_WORDS)
_HEAD_BYTES: Final = 8 * _HEAD_WORDS
BILL_BYTES: Final = _SLOT_BYTES - _HEAD_BYTES
_FRAME_BYTES: Final = 8
_LOG_BYTES: Final = 1 << 20
"""A log that has grown by so much is written anew, as what is left of it."""
_LOG_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_APPEND
_SLOTS: Final = ".slots"
_RETRY_SECONDS: Final = 1.0
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Record).decode


class Slot:
    """A running request: its `bill`, which says who pays for what, and what it has had so far."""

    def __init__(self, memory: memoryview, *, outlives: bool = False) -> None:
        """One in `memory`, which outlives the process or does not."""
        self.outlives = outlives
        self._words = memory[:_HEAD_BYTES].cast("Q")  # [_HEAD_WORDS]
        self._bill = memory[_HEAD_BYTES:]

    def begin(self, number: int, bill: bytes) -> None:
        """Have it be a request's. It is nobody's until the number is there."""
        words = self._words
        words[_LENGTH] = len(bill)
        words[_CACHED] = words[_WRITTEN] = words[_OUTPUT] = 0
        self._bill[: len(bill)] = bill
        words[_NUMBER] = number

    def end(self) -> None:
        """Have it be nobody's again."""
        self._words[_NUMBER] = 0

    def note_prompt(self, cached: int, written: int) -> None:
        """How much of its prompt was found in the cache, and how much was left there."""
        self._words[_CACHED] = cached
        self._words[_WRITTEN] = written

    def note_output(self, tokens: int) -> None:
        """How many tokens it has had; called for each delta before anybody is shown it."""
        self._words[_OUTPUT] = tokens

    @property
    def number(self) -> int:
        """The request's in this journal; 0 is nobody's."""
        return self._words[_NUMBER]

    @property
    def bill(self) -> bytes:
        """As it began."""
        return bytes(self._bill[: self._words[_LENGTH]])

    @property
    def cached_tokens(self) -> int:
        """Of its prompt, found in the cache."""
        return self._words[_CACHED]

    @property
    def cache_write_tokens(self) -> int:
        """Of its prompt, computed and left in the cache."""
        return self._words[_WRITTEN]

    @property
    def output_tokens(self) -> int:
        """Those that it has had."""
        return self._words[_OUTPUT]


class Journal:
    """One that nobody will read: of a process that keeps its usage in memory alone."""

    def __init__(self, meter_id: str | None = None) -> None:
        self.meter_id = secrets.token_hex(8) if meter_id is None else meter_id
        self._requests = 0
        self._running = 0
        self._free: list[Slot] = []

    def begin(self, bill: bytes) -> Slot:
        """A slot for a request that is about to reserve what it may use."""
        assert len(bill) <= BILL_BYTES
        if not self._free:
            self._grow()
        slot = self._free.pop()
        self._requests += 1
        self._running += 1
        slot.begin(self._requests, bill)
        return slot

    def end(self, slot: Slot) -> None:
        """Have a slot again whose request was booked."""
        slot.end()
        self._running -= 1
        if slot.outlives:
            self._free.append(slot)

    @property
    def is_settled(self) -> bool:
        """Whether every request in it is booked, which nobody knows of one that was not read."""
        return not self._running

    def append(self, record: Record, ledger: Ledger) -> None:
        """Keep a record; `ledger` has it already."""

    def read(self) -> tuple[Ledger, list[Slot]]:
        """What an earlier owner has left: its ledger, and the slots of requests not booked yet."""
        return Ledger(), []

    def left(self) -> Iterator[FileJournal]:
        """Those of processes that are gone, in the same place; each is now this one's to close."""
        return iter(())

    def close(self) -> None:
        """End it; what it has is for the next owner."""

    def remove(self) -> None:
        """End it, as there is nothing left in it."""

    def _grow(self) -> None:
        self._free.append(Slot(memoryview(bytearray(_SLOT_BYTES))))


class FileJournal(Journal):
    """One in a folder. Where the disk takes no more, usage is in memory alone until it does."""

    def __init__(self, folder: Path, meter_id: str | None = None) -> None:
        """That of `meter_id`, or a new one. Raises `BlockingIOError` where it is another's, and
        `OSError` for a folder that cannot be used.
        """
        super().__init__(meter_id)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder = folder
        self._is_read = meter_id is None
        self._slots = self._locked(is_new=meter_id is None)
        self._path = folder / f"{self.meter_id}.log"
        try:
            self._log = os.open(self._path, _LOG_FLAGS, 0o600)
        except OSError:
            os.close(self._slots)  # it would be locked for as long as this process lives
            raise
        self._log_bytes, self._most_bytes = 0, _LOG_BYTES
        self._is_whole, self._retry_at = True, 0.0

    def _locked(self, is_new: bool) -> int:
        """The slots, as nobody else's. What is new may be found, and removed, before it is locked:
        it gets another name then.
        """
        while True:
            fd = os.open(self._slots_path, os.O_RDWR | os.O_CREAT * is_new, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(fd).st_nlink:
                    return fd
                raise BlockingIOError(f"{self._slots_path} is gone")
            except BlockingIOError:
                os.close(fd)
                if not is_new:
                    raise
                self.meter_id = secrets.token_hex(8)

    @property
    def _slots_path(self) -> Path:
        return self._folder / f"{self.meter_id}{_SLOTS}"

    @property
    def _new_path(self) -> Path:
        return self._path.with_suffix(".log.new")

    def left(self) -> Iterator[FileJournal]:
        """See `Journal`."""
        for path in sorted(self._folder.glob(f"*{_SLOTS}")):
            try:
                journal = FileJournal(self._folder, path.stem)
            except (BlockingIOError, FileNotFoundError):
                continue
            except OSError as error:
                _log.error("what a killed process had counted cannot be read: %s", error)
                continue
            yield journal

    def read(self) -> tuple[Ledger, list[Slot]]:
        """See `Journal`. Raises `OSError`, `msgspec.DecodeError`."""
        ledger = Ledger()
        for record in self._records():
            ledger.apply(record)
        self._rewrite(ledger)  # behind half a record nothing could be read
        size, step = os.fstat(self._slots).st_size, _SLOTS_AT_ONCE * _SLOT_BYTES
        slots = [slot for start in range(0, size - step + 1, step) for slot in self._map(start)]
        for slot in slots:
            if slot.number == ledger.last_request:
                slot.end()  # its owner was killed before it could; others will be the newest
        running = [slot for slot in slots if slot.number]
        self._is_read, self._running = True, len(running)
        return ledger, running

    @property
    def is_settled(self) -> bool:
        """See `Journal`."""
        return self._is_read and super().is_settled

    def append(self, record: Record, ledger: Ledger) -> None:
        """See `Journal`. A log that has grown long is written anew, and so is one with a gap."""
        if not self._is_whole and monotonic() < self._retry_at:
            return
        try:
            if self._is_whole and self._log_bytes < self._most_bytes:
                self._write(self._log, _framed(record))
            else:
                self._rewrite(ledger)
        except OSError as error:
            self._is_whole, self._retry_at = False, monotonic() + _RETRY_SECONDS
            _log.error("usage is kept in memory alone: %s", error)

    def close(self) -> None:
        """Give it up as it is."""
        self._free = []
        fcntl.flock(self._slots, fcntl.LOCK_UN)  # what is mapped would hold it
        for fd in (self._log, self._slots):
            os.close(fd)

    def remove(self) -> None:
        """Remove its files, the one by which it is found last."""
        for path in (self._new_path, self._path):
            path.unlink(missing_ok=True)
        self._slots_path.unlink(missing_ok=True)
        self.close()

    def _grow(self) -> None:
        """More slots, in blocks that the disk has: a hole without room would kill who writes it."""
        end = os.fstat(self._slots).st_size
        try:
            os.posix_fallocate(self._slots, end, _SLOTS_AT_ONCE * _SLOT_BYTES)
            self._free += self._map(end)
        except OSError as error:
            _log.error("a request is in memory alone: %s", error)
            super()._grow()

    def _map(self, start: int) -> list[Slot]:
        memory = memoryview(mmap.mmap(self._slots, _SLOTS_AT_ONCE * _SLOT_BYTES, offset=start))
        starts = range(0, len(memory), _SLOT_BYTES)
        return [Slot(memory[at : at + _SLOT_BYTES], outlives=True) for at in starts]

    def _records(self) -> Iterator[Record]:
        """Up to the first that is not whole: its writer was killed within it."""
        content, at = self._path.read_bytes(), 0
        while len(content) - at >= _FRAME_BYTES:
            length, check = int.from_bytes(content[at : at + 4]), content[at + 4 : at + 8]
            body = content[at + _FRAME_BYTES : at + _FRAME_BYTES + length]
            if len(body) < length or _check(body) != check:
                return
            yield _decode(body)
            at += _FRAME_BYTES + length

    def _rewrite(self, ledger: Ledger) -> None:
        """Have a log that says what the ledger has, and nothing of how it came to that."""
        new = self._new_path
        log = os.open(new, _LOG_FLAGS | os.O_TRUNC, 0o600)
        try:
            self._log_bytes = 0
            self._write(log, _framed(ledger.state))
            new.rename(self._path)
        except BaseException:
            os.close(log)
            raise
        os.close(self._log)
        self._log, self._is_whole = log, True
        self._most_bytes = 2 * self._log_bytes + _LOG_BYTES

    def _write(self, log: int, frame: bytes) -> None:
        if os.write(log, frame) < len(frame):
            raise OSError(f"{self._path} has no room")
        self._log_bytes += len(frame)


def _framed(record: Record) -> bytes:
    body = _encode(record)
    return len(body).to_bytes(4) + _check(body) + body


def _check(body: bytes) -> bytes:
    return zlib.crc32(body).to_bytes(4)
