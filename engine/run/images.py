"""The bytes of blocks, for who keeps them elsewhere: copied out, and put back.

On a CPU they are put back where they belong. Beside a GPU both ways lead through pinned memory, in
the queue of copies.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from engine.blocks.transfers import Transfers
from engine.disk.memory import Fetched, Landing
from engine.model.layers.paged_model import PagedModel
from engine.run.copies import BlockCopies, Blocks
from kernels.huge_pages import populate

_READY_BYTES = 2 << 20
"""Of memory that is made ready in one call of the system: as long, a millisecond, others wait that
have memory mapped, as each large buffer has.
"""


class BlockImages:
    """The images of a model's blocks: the bytes of their rows, one block behind the other."""

    def __init__(self, model: PagedModel, copies: BlockCopies) -> None:
        self._model = model
        self._copies = copies
        self._staged = torch.empty(0, 0, dtype=torch.uint8)
        """What was fetched last."""

    @property
    def block_bytes(self) -> int:
        """Of one block."""
        return self._model.page_bytes

    @property
    def block_layout(self) -> bytes:
        """How the bytes of a block lie."""
        return f"{self._model.pages.describe()} {self._model.kv_storage}".encode()

    def make_ready(self, num_blocks: int) -> None:
        """See `engine.disk.memory.BlockMemory`."""
        if self._model.device.type == "cpu":
            count = max(1, _READY_BYTES // self.block_bytes)
            for first in range(0, num_blocks, count):
                populate(self._model.rows[first : min(first + count, num_blocks)])

    @torch.inference_mode()
    def move(self, transfers: Transfers) -> None:
        """See `engine.disk.memory.BlockMemory`."""
        self._copies.begin(transfers)
        if transfers.copies:
            touched: list[Blocks] = [np.array(transfers.copies, np.int64)]
            self._copies.join(touched)
            self._model.copy_pages(transfers.copies)
            self._copies.launched(touched)

    def fetch(self, blocks: list[int]) -> Fetched:
        """See `engine.disk.memory.BlockMemory`."""
        if len(self._staged) < len(blocks):
            self._staged = self._staging(len(blocks))
        rows = self._staged[: len(blocks)]
        return Fetched(_views(rows), self._copies.fetch(blocks, rows).query)

    def landing(self, blocks: list[int]) -> Landing:
        """See `engine.disk.memory.BlockMemory`."""
        if self._model.device.type == "cpu":
            own = self._model.rows.numpy()  # whose rows are views sooner than a tensor's
            return Landing([memoryview(own[block]) for block in blocks], lambda: None)
        return self._staged_landing(blocks)

    def _staged_landing(self, blocks: list[int]) -> Landing:
        rows = self._staging(len(blocks))
        return Landing(_views(rows), partial(self._copies.land, rows, blocks))

    def _staging(self, count: int) -> Tensor:
        is_pinned = self._model.device.type == "cuda"
        return torch.empty(count, self.block_bytes, dtype=torch.uint8, pin_memory=is_pinned)


def _views(rows: Tensor) -> list[memoryview]:
    return [memoryview(row) for row in rows.numpy()]
