"""Blocks kept on disk, as the engine's loop sees them: saved beside steps, found by requests."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from msgspec import json, structs

from engine.api import EVERYTHING, NOTHING_CACHED, EngineInfo, EngineRequest
from engine.config import EngineConfig
from engine.disk.folder import Folder, KeptFile, mark, remove, remove_folder
from engine.disk.memory import BlockMemory
from engine.disk.restoring import Restorer
from engine.disk.saving import Saver
from engine.disk.shelf import Shelf
from engine.grammar.compiled import CompiledGrammar
from engine.schedule.scheduler import Scheduler

_log = logging.getLogger(__name__)
_MAKING_READY_SECONDS: Final = 0.5
"""By which a start is later, at most; some GiB on a quiet machine."""
_BUSY_SECONDS: Final = 0.001
"""Between two looks at what a thread does, while nothing else is to be done."""


Entering = tuple[EngineRequest, CompiledGrammar | None]
"""A request that goes to the scheduler, with its grammar."""


class Keeper:
    """Saves what is to be kept every now and then, and restores it for requests."""

    def __init__(
        self,
        config: EngineConfig,
        info: EngineInfo,
        scheduler: Scheduler,
        memory: BlockMemory,
    ) -> None:
        """Finds what is there. Raises `OSError` where the folder cannot be used."""
        assert config.kept_dir is not None
        self._interval = config.kept_seconds
        self._due = time.monotonic() + self._interval
        self._layout = _layout(info, memory)
        self._block_bytes = scheduler.pool.block_pages * memory.page_bytes
        self._folder = Folder(Path(config.kept_dir))
        self.shelf = Shelf(config.kept_bytes)
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="kept")
        self._scan: Future[list[KeptFile]] | None = None
        self._entering: dict[str, Entering] = {}
        self._owners: dict[str, str] = {}
        """By the names of their folders."""
        self._saver = Saver(scheduler, memory, self.shelf, self._folder, self._layout, self._disk)
        self.restorer = Restorer(
            scheduler, memory, self.shelf, self._folder, self._used, self._damaged
        )
        self._put_on_shelf(self._folder.scan(self._layout, set()))
        # The pool's first pages are taken first; what is read would wait for their memory. To make
        # it ready takes the cores that the first requests want: if it is soon done, it comes first.
        num_pages = min(self.shelf.num_bytes // memory.page_bytes, scheduler.pool.num_pages)
        wait([self._disk.submit(memory.make_ready, num_pages)], _MAKING_READY_SECONDS)

    def __len__(self) -> int:
        """How many requests wait."""
        return len(self._entering)

    @property
    def rest_seconds(self) -> float:
        """How long there is nothing to advance, if nothing else happens."""
        if self.restorer.is_busy or self._saver.is_busy or self._scan is not None:
            return _BUSY_SECONDS if self._awaited else 0.0
        return max(0.0, self._due - time.monotonic())

    def submit(self, request: EngineRequest, grammar: CompiledGrammar | None) -> bool:
        """Let a request wait for its blocks, if some of them are on disk."""
        if not self.restorer.submit(request):
            return False
        self._entering[request.request_id] = request, grammar
        return True

    def advance(self, patience_seconds: float = 0.0) -> list[Entering]:
        """Do a little of what is due; returns the requests that need not wait any more.

        For a thread that there is nothing to do before, it waits so long.
        """
        if patience_seconds and self._awaited:
            wait(self._awaited, patience_seconds, FIRST_COMPLETED)
        if self.restorer.is_busy:
            self.restorer.advance()
        self._save()
        return [self._entering.pop(name) for name in self.restorer.ready()]

    def abort(self, request_id: str, index: int | None) -> EngineRequest | None:
        """Let a request that waits do without its sequence `index`, or be forgotten with all.

        Returns it as it was; `None` if it does not wait, or that sequence has ended.
        """
        request, grammar = self._entering.get(request_id, (None, None))
        if request is None or index in request.ended:
            return None
        less = request.without(index)
        if less is None:
            del self._entering[request_id]
            self.restorer.leave(request_id)
        else:
            self._entering[request_id] = less, grammar
        return request

    def blocks_by_owner(self) -> dict[str, int]:
        """What is on disk, as blocks of each kind; "" has that of owners of whom nobody has told
        (`forget_others`)."""
        counts = Counter[str]()
        for folder, num_bytes in self.shelf.kv_bytes_by_owner.items():
            counts[self._owners.get(folder, "")] += num_bytes
        return {owner: -(-one // self._block_bytes) for owner, one in counts.items()}

    def forget_tenant(self, tenant: str) -> None:
        """Remove a tenant's files. Its requests that wait go on, and leave nothing behind."""
        self._saver.forget_owner(tenant)
        self.restorer.forget_tenant(tenant)
        for name, (request, grammar) in self._entering.items():
            if request.tenant == tenant:
                self._entering[name] = structs.replace(request, cache=NOTHING_CACHED), grammar
        self._remove_owner(self._folder.of_owner(tenant))

    def forget_others(self, tenants: Mapping[str, str]) -> None:
        """Remove the files of all but these, who were forgotten while nobody could be told.

        With each, what tells its namespaces' secret from former ones: those files go, too.
        """
        self._folder.secrets = dict(tenants)
        self._owners = {self._folder.of_owner(tenant): tenant for tenant in tenants}
        for owner in self.shelf.owners - self._owners.keys():
            self._remove_owner(owner)

    def keep_under(self, tenant: str, secret: str) -> None:
        """Remove a tenant's files under another secret than this."""
        before = self._folder.of_owner(tenant)
        self._folder.secrets[tenant] = secret
        now = self._folder.of_owner(tenant)
        self._owners[now] = tenant
        if now != before:
            self._remove_owner(before)

    def close(self, patience_seconds: float) -> None:
        """Save what there is time for, and let go of everything."""
        deadline = time.monotonic() + patience_seconds
        while self._saver.is_busy and time.monotonic() < deadline:
            self.advance(_BUSY_SECONDS)  # what was found so far; there may be more since
        self._saver.begin()
        while self._saver.is_busy and time.monotonic() < deadline:
            self.advance(_BUSY_SECONDS)
        self.restorer.close()
        self._disk.shutdown()

    @property
    def _awaited(self) -> list[Future[Any]]:
        """What there is nothing to do before, beside requests."""
        if self.restorer.is_busy:
            return [*self.restorer.awaited]
        one = self._scan or self._saver.awaited
        return [] if one is None else [one]

    def _save(self) -> None:
        """Look for other processes' files first, then through the pool."""
        if self._scan is not None:
            if self._scan.done():
                self._put_on_shelf(_found(self._scan))
                self._scan = None
                self._saver.begin()
        elif self._saver.is_busy:
            self._saver.advance()
            self._due = time.monotonic() + self._interval
        elif time.monotonic() >= self._due:
            self._scan = self._disk.submit(self._folder.scan, self._layout, self.shelf.paths)

    def _put_on_shelf(self, files: list[KeptFile]) -> None:
        known = self.shelf.paths
        for file in files:
            if file.path not in known:
                self.shelf.add(file)
        victims = self.shelf.shrink()
        if victims:
            self._disk.submit(remove, victims)
        if files:
            mib = self.shelf.num_bytes / 2**20
            _log.info("%d kept files are on disk, %.0f MiB", len(self.shelf), mib)

    def _used(self, file: KeptFile) -> None:
        files = self.shelf.use(file, time.time())
        self._disk.submit(mark, [(one.path, one.used, one.until) for one in files])

    def _damaged(self, file: KeptFile, error: Exception) -> None:
        self.shelf.drop(file)
        if isinstance(error, FileNotFoundError):
            return  # another process has dropped it
        _log.warning("kept file %s is dropped: %s", file.path.name, error)
        self._disk.submit(remove, [file])

    def _remove_owner(self, owner: str) -> None:
        self.shelf.drop_owner(owner)
        self._disk.submit(remove_folder, self._folder.root / owner)


def _found(scan: Future[list[KeptFile]]) -> list[KeptFile]:
    error = scan.exception()
    if error is None:
        return scan.result()
    _log.warning("the folder of kept blocks cannot be read: %s", error)
    return []


def _layout(info: EngineInfo, memory: BlockMemory) -> bytes:
    """What has computed blocks, of which kinds they are, and how their bytes lie."""
    parts = [info.hash_extras, memory.block_layout, str(info.block_size).encode()]
    if info.kinds != (EVERYTHING,):
        parts.append(json.encode(info.kinds))
    digest = blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()
