"""The bytes of blocks, for who keeps them elsewhere: copied out, and put back.

On a CPU they are put back where they belong, but for blocks of several pages, whose bytes come in
one piece. Beside a GPU both ways lead through pinned memory, in the queue of copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain

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
    """The images of a model's blocks: the bytes of their pages, one behind the other."""

    def __init__(self, model: PagedModel, copies: BlockCopies) -> None:
        self._model = model
        self._copies = copies
        self._staged = torch.empty(0, 0, dtype=torch.uint8)
        """What was fetched last."""

    @property
    def page_bytes(self) -> int:
        """Of one page."""
        return self._model.page_bytes

    @property
    def block_layout(self) -> bytes:
        """How the bytes of a block lie."""
        return f"{self._model.pages.describe()} {self._model.kv_storage}".encode()

    def make_ready(self, num_pages: int) -> None:
        """See `engine.disk.memory.BlockMemory`."""
        if self._model.device.type == "cpu":
            count = max(1, _READY_BYTES // self.page_bytes)
            for first in range(0, num_pages, count):
                populate(self._model.rows[first : min(first + count, num_pages)])

    @torch.inference_mode()
    def move(self, transfers: Transfers) -> None:
        """See `engine.disk.memory.BlockMemory`."""
        self._copies.begin(transfers)
        if transfers.copies:
            touched: list[Blocks] = [np.array(transfers.copies, np.int64)]
            self._copies.join(touched)
            self._model.copy_pages(transfers.copies)
            self._copies.launched(touched)

    def fetch(self, blocks: Sequence[Sequence[int]]) -> Fetched:
        """See `engine.disk.memory.BlockMemory`."""
        pages = list(chain.from_iterable(blocks))
        if len(self._staged) < len(pages):
            self._staged = self._staging(len(pages))
        rows = self._staged[: len(pages)]
        return Fetched(_views(rows, len(blocks)), self._copies.fetch(pages, rows).query)

    def landing(self, blocks: Sequence[Sequence[int]]) -> Landing:
        """See `engine.disk.memory.BlockMemory`."""
        pages = list(chain.from_iterable(blocks))
        if self._model.device.type == "cpu" and len(pages) == len(blocks):
            own = self._model.rows.numpy()  # whose rows are views sooner than a tensor's
            return Landing([memoryview(own[page]) for page in pages], lambda: None)
        return self._staged_landing(pages, len(blocks))

    def _staged_landing(self, pages: list[int], num_blocks: int) -> Landing:
        rows = self._staging(len(pages))
        return Landing(_views(rows, num_blocks), partial(self._copies.land, rows, pages))

    def _staging(self, count: int) -> Tensor:
        is_pinned = self._model.device.type == "cuda"
        return torch.empty(count, self.page_bytes, dtype=torch.uint8, pin_memory=is_pinned)


def _views(rows: Tensor, num_blocks: int) -> list[memoryview]:
    """Of blocks whose pages are neighbours: `rows` is [num_pages, page_bytes]."""
    return [memoryview(block) for block in rows.view(num_blocks, -1).numpy()]
