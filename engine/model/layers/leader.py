"""The first rank: what it is told of its memory and its batches, it tells the others.

The engine knows one `PagedModel`, whose calls go to every rank in the same order. Ranks that no
longer do the same cannot be put right: then the engine is broken, and is to be started anew.
"""

from __future__ import annotations

import io
import itertools
import pickle
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor

from engine.api import EngineBroken, EngineError
from engine.batch.batch import Batch
from engine.model.layers.layout import AttentionLayout
from engine.model.layers.linear_places import Places
from engine.model.layers.page_channel import PageChannel, Pages
from engine.model.layers.paged_model import PagedModel, Weights
from engine.model.layers.shard import Shard, leave
from kernels.kv_format import KvDtype

_P = ParamSpec("_P")
_Result = TypeVar("_Result")

_ENDING_SECONDS = 5.0


class Followers:
    """The other ranks, in processes that end with this one."""

    def __init__(
        self,
        processes: Sequence[SpawnProcess],
        connections: Sequence[Connection],
        channels: Sequence[PageChannel],
    ) -> None:
        self.shard = Shard(0, 1 + len(processes))
        """The leader's."""
        self._connections = list(connections)
        self._processes = list(processes)
        self._channels = list(channels)
        self._tickets = itertools.count()
        self.close: Callable[[], object] = weakref.finalize(
            self, _end, self._processes, [*self._connections, *self._channels]
        )
        """End them. Whoever lets go of them does so too."""

    def wait(self) -> None:
        """Until each has come to its next stop. Raises `EngineError` if one cannot go on."""
        for connection in self._connections:
            try:
                problem: str | None = connection.recv()
            except (EOFError, OSError):
                problem = "it ended at start"
            if problem is not None:
                raise EngineError(f"tensor_parallel: a process cannot serve its part: {problem}")

    def filling(self, pages: Sequence[Pages]) -> Callable[[], None]:
        """What any thread is to do so that each has these pages, behind all that they were told."""
        ticket = next(self._tickets)
        with self.do("expect_pages", ticket):
            return partial(_send, self._channels, ticket, pages)

    @contextmanager
    def do(self, method: str, *arguments: object) -> Iterator[None]:
        """Let all call that method of theirs, while the leader calls its own in the context.

        Raises `EngineBroken` if that fails anywhere.
        """
        try:
            message = packed((method, arguments))
            for connection in self._connections:
                connection.send_bytes(message)
            yield
        except Exception as error:
            ended = [one.name for one in self._processes if not one.is_alive()]
            said = f"{', '.join(ended)} ended" if ended else f"{type(error).__name__}: {error}"
            raise EngineBroken(f"the processes of one model fell apart: {said}") from error


def _send(channels: Sequence[PageChannel], ticket: int, pages: Sequence[Pages]) -> None:
    for channel, own in zip(channels, pages, strict=True):
        channel.send(ticket, own)


def _end(processes: list[SpawnProcess], connections: list[Connection | PageChannel]) -> None:
    """They end where their connection does, unless they are in the middle of something."""
    for connection in connections:
        connection.close()
    leave()
    for process in processes:
        process.join(_ENDING_SECONDS)
        if process.is_alive():
            process.kill()
            process.join()


def _led(
    method: Callable[Concatenate[PagedModel, _P], _Result],
) -> Callable[Concatenate[LeadingModel, _P], _Result]:
    """A method that every rank calls, with the same arguments."""

    def led(self: LeadingModel, /, *args: _P.args, **named: _P.kwargs) -> _Result:
        assert not named, "arguments go by their places"
        with self.followers.do(method.__name__, *args):
            return method(self, *args, **named)

    return led


class LeadingModel(PagedModel):
    """The first rank's part of a model, and the door to all of it."""

    def __init__(
        self,
        weights: Weights,
        block_size: int,
        kv_dtype: KvDtype,
        batch_invariant: bool,
        followers: Followers,
        parts: Sequence[AttentionLayout],
    ) -> None:
        """Over the first rank's `weights`; `parts` are the layouts of all ranks."""
        super().__init__(weights, block_size, kv_dtype, batch_invariant)
        self.followers = followers
        self._parts = parts

    @property
    def block_bytes(self) -> int:
        """Of all ranks together."""
        return sum(part.block_bytes(self.block_size, self.kv_storage) for part in self._parts)

    allocate = _led(PagedModel.allocate)
    allocate_host = _led(PagedModel.allocate_host)
    swap_out = _led(PagedModel.swap_out)
    swap_in = _led(PagedModel.swap_in)
    copy_pages = _led(PagedModel.copy_pages)
    use_adapter = _led(PagedModel.use_adapter)
    forget_adapter = _led(PagedModel.forget_adapter)

    @property
    def adaptable(self) -> list[tuple[Places, int]]:
        """See `PagedModel.adaptable`."""
        linears, storage = self.weights.decoder.linears, self.kv_storage
        sizes = [part.pages(self.block_size, storage).page_size for part in self._parts]
        return [
            (linears[rank % len(linears)], size * storage.itemsize)
            for rank, size in enumerate(sizes)
        ]

    def filling(self, others: Sequence[Pages]) -> Callable[[], None]:
        """See `PagedModel.filling`."""
        return self.followers.filling(others)

    def forward(self, batch: Batch) -> Tensor:
        """See `PagedModel.forward`. An adapter's weights are on every rank: it goes by its name."""
        if not batch.adapted:
            with self.followers.do("forward", batch):
                return super().forward(batch)
        names = {adapter: name for name, adapter in self.adapters.items()}
        adapted = [(names[adapter], rows) for adapter, rows in batch.adapted]
        with self.followers.do("forward_with", replace(batch, adapted=()), adapted):
            return super().forward(batch)


class _Pickler(pickle.Pickler):
    """Tensors as the arrays that they are: torch's own way takes longer than a small step."""

    def reducer_override(self, value: object) -> Any:
        if isinstance(value, Tensor):
            return torch.from_numpy, (value.numpy(),)
        return NotImplemented


def packed(message: object) -> bytes:
    """For `pickle.loads`, by processes of one's own only."""
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(message)
    return buffer.getvalue()
