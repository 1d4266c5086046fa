"""Blocks on their way to the host and back, in a queue of their own, beside what is computed.

A step is launched while the one before it is computed, so its copies are under way by the time that
it begins. Either queue waits for the other only where both touch the same blocks: a copy for the
steps that read or write its block and may not be done, a step for the copies of blocks that are in
its tables. The host waits for neither.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.blocks.transfers import Transfers
from engine.model.layers.paged_model import PagedModel
from engine.run.stopwatch import Stopwatch
from engine.schedule.swap_or_recompute import CostModel

Blocks = npt.NDArray[np.integer[Any]]


class Event(Protocol):
    """A moment in a queue."""

    def query(self) -> bool:
        """Whether it has come."""
        ...


class Queues(Protocol):
    """A device's two queues, of computations and of copies; what is done goes to the former."""

    def copying(self) -> AbstractContextManager[Any]:
        """What is done within goes to the queue of copies."""
        ...

    def mark(self) -> Event:
        """The moment at which all is done that has gone to the queue so far."""
        ...

    def wait(self, event: Any) -> None:
        """What goes to the queue from now on waits for a moment in the other one."""
        ...


class CudaQueues:
    """The current stream, and one for copies."""

    def __init__(self, device: torch.device) -> None:
        self._copies = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def copying(self) -> AbstractContextManager[Any]:
        """See `Queues`."""
        return torch.cuda.stream(self._copies)

    def mark(self) -> Event:
        """See `Queues`."""
        event: Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()  # type: ignore[attr-defined]
        return event

    def wait(self, event: Any) -> None:
        """See `Queues`."""
        torch.cuda.current_stream().wait_event(event)


class InOrder:
    """A processor that does everything at once, when it is told."""

    def copying(self) -> AbstractContextManager[Any]:
        """See `Queues`."""
        return nullcontext()

    def mark(self) -> Event:
        """See `Queues`."""
        return _PAST

    def wait(self, event: Event) -> None:
        """See `Queues`."""


class _Past:
    def query(self) -> bool:
        return True


_PAST = _Past()


@dataclass(frozen=True, slots=True)
class _Use:
    """What has gone to a queue, up to an event, and the blocks that it touches."""

    until: Event
    blocks: list[Blocks]

    def touches(self, others: list[Blocks]) -> bool:
        return any(np.isin(one, other).any() for one in self.blocks for other in others)


@dataclass(frozen=True, slots=True)
class _Timed:
    transfers: Transfers
    watch: Stopwatch


class BlockCopies:
    """Swaps the blocks of a model's memory, in the order that their users need."""

    def __init__(self, model: PagedModel, queues: Queues | None = None) -> None:
        if queues is None:
            queues = CudaQueues(model.device) if model.device.type == "cuda" else InOrder()
        self._model = model
        self._queues = queues
        self._steps: list[_Use] = []
        self._copies: list[_Use] = []
        self._timed: list[_Timed] = []

    def begin(self, transfers: Transfers) -> None:
        """Swap blocks out, then in, as soon as what was launched before lets go of them."""
        swap_outs, swap_ins = transfers.swap_outs, transfers.swap_ins
        if not (swap_outs or swap_ins):
            return
        blocks = [np.array([block for block, _ in swap_outs] + [block for _, block in swap_ins])]
        watch = Stopwatch(self._model.device)
        with self._queues.copying():
            self._steps = self._wait(self._steps, blocks)
            watch.mark()
            self._model.swap_out(swap_outs)
            watch.mark()
            self._model.swap_in(swap_ins)
            watch.mark()
            self._copies.append(_Use(self._queues.mark(), blocks))
        self._timed.append(_Timed(transfers, watch))

    @torch.inference_mode()
    def fetch(self, blocks: Sequence[int], rows: Tensor) -> Event:
        """Copy the bytes of blocks to `rows`, in the host's memory; returns when they are there."""
        return self._move_rows(blocks, [(rows[at], block) for at, block in self._bytes_of(blocks)])

    @torch.inference_mode()
    def land(self, rows: Tensor, blocks: Sequence[int]) -> None:
        """Copy `rows`, in the host's memory, to the bytes of blocks."""
        self._move_rows(blocks, [(block, rows[at]) for at, block in self._bytes_of(blocks)])

    def join(self, touched: list[Blocks]) -> None:
        """A step that touches these blocks is about to be computed."""
        self._copies = self._wait(self._copies, touched)

    def launched(self, touched: list[Blocks]) -> None:
        """A step that touches these blocks is in the queue."""
        self._steps = [step for step in self._steps if not step.until.query()]
        self._steps.append(_Use(self._queues.mark(), touched))

    def observe(self, costs: CostModel) -> None:
        """Tell how long swaps have taken that are done."""
        done = [timed for timed in self._timed if timed.watch.is_done]
        self._timed = [timed for timed in self._timed if timed not in done]
        for timed in done:
            swap_out, swap_in = timed.watch.seconds()
            costs.observe_swap_out(len(timed.transfers.swap_outs), swap_out)
            costs.observe_swap_in(len(timed.transfers.swap_ins), swap_in)

    def _bytes_of(self, blocks: Sequence[int]) -> Iterator[tuple[int, Tensor]]:
        rows = self._model.rows
        return ((at, rows[block]) for at, block in enumerate(blocks))

    def _move_rows(self, blocks: Sequence[int], pairs: Sequence[tuple[Tensor, Tensor]]) -> Event:
        """Copy each source to its target, as soon as steps let go of `blocks`."""
        touched: list[Blocks] = [np.array(blocks)]
        with self._queues.copying():
            self._steps = self._wait(self._steps, touched)
            for target, source in pairs:
                target.copy_(source, non_blocking=True)
            done = self._queues.mark()
        self._copies.append(_Use(done, touched))
        return done

    def _wait(self, uses: list[_Use], blocks: list[Blocks]) -> list[_Use]:
        """Wait for the uses of `blocks`, all in one queue. Returns those that may not be done."""
        left = [use for use in uses if not use.until.query()]
        for use in reversed(left):
            if use.touches(blocks):
                self._queues.wait(use.until)
                break
        return left
