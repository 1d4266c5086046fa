"""Steps with prompts, of which all but attention is recorded: piecewise CUDA graphs.

Attention over prompts has grids that follow their lengths, and no graph can hold it. What lies
between one layer's attention and the next one's depends on the number of tokens alone: it is
recorded for few such numbers, and batches are filled up to them. A step of few tokens then is not
longer than what the device computes, as one is that tells it of eight operations more a layer. What
takes the device longer than the host, many tokens, is computed as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from engine.batch.batch import Batch
from engine.batch.staging import Array, num_bytes, refill, upload, views
from engine.model.layers.fused import FusedDecoder
from engine.model.layers.paged_model import PagedModel
from engine.run.graphs.padding import tensors_of, with_tensors
from engine.run.graphs.recording import DeviceMemory, Graphs, Record, Recording

TOKEN_BUCKETS = (16, 32, 64, 96, 128, 192, 256, 384, 512)
"""Numbers of tokens; what is added is at most half of them."""


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Of one number of tokens."""

    token_ids: Tensor
    """Where they are read."""
    recordings: list[Recording]
    """One more than there are layers."""


class PieceGraphs(Graphs):
    """Computes batches of up to as many tokens as `TOKEN_BUCKETS` say, by a model of fused layers.

    Those that are added write their KV to a page that belongs to nobody.
    """

    _kind = "the pieces of steps of %d sizes up to %d tokens"

    def __init__(
        self,
        model: PagedModel,
        decoder: FusedDecoder,
        null_page: int,
        most_tokens: int,
        record: Record | None = None,
        memory: DeviceMemory | None = None,
    ) -> None:
        """`decoder` is that of `model`, and `most_tokens` what a step has. The others are as for
        `engine.run.graphs.decode.DecodeGraphs`.
        """
        self._model = model
        self._decoder = decoder
        self._null_slot = null_page * model.block_size
        buckets = [bucket for bucket in TOKEN_BUCKETS if bucket <= most_tokens]
        super().__init__(model.device, buckets, record, memory)
        self._pieces: dict[int, _Pieces] = {}
        most = max(buckets, default=0)
        call, device = model.layout.calls[0], model.device  # fused layers are alike
        heads = (most, call.num_heads, call.head_dim)
        stream = (most, decoder.hidden_size)
        size = (2 + model.pages.num_columns) * 8 * most
        self._buffer = torch.zeros(size, dtype=torch.uint8, device=device)
        # What recordings pass on to each other and to attention: [most tokens, ...]
        self._residual = torch.zeros(stream, dtype=model.dtype, device=device)
        self._update = torch.zeros(stream, dtype=model.dtype, device=device)
        self._query = torch.zeros(heads, dtype=model.dtype, device=device)
        self._attended = torch.zeros(heads, dtype=model.dtype, device=device)

    def run(self, host: Batch, complete: Callable[[Tensor], None]) -> tuple[Tensor, Tensor] | None:
        """Compute a batch that lies in the host's memory; `None` where it has too many tokens.

        `complete` is as for `DecodeGraphs.run`. Returns, of each row that draws, the newest token
        and the logits.
        """
        count = len(host.token_ids)
        size = self._size_for(count)
        if size is None:
            return None
        pieces = self._pieces[size]
        arrays = self._inputs(host, size)
        refill(self._buffer[: num_bytes(arrays)], arrays)
        batch = with_tensors(
            host, upload([tensor.numpy() for tensor in tensors_of(host)], self._model.device)
        )
        complete(pieces.token_ids)
        batch = self._model.arranged(batch)
        first, *others = pieces.recordings
        query, attended = self._query[:count], self._attended[:count]
        caches, columns = self._model.caches, batch.columns
        first.replay()
        for index, piece in enumerate(others):
            own = columns[caches.columns[index]]
            self._decoder.attend(index, query, caches.views[index], own, attended)
            piece.replay()
        rows = batch.logit_rows
        logits = self._decoder.logits(self._residual[:size], self._update[:size], rows)
        return pieces.token_ids.index_select(0, rows), logits

    def _inputs(self, host: Batch | None, size: int) -> list[Array]:
        """Token ids, places in rotary tables and each column's slots of a batch, and of tokens that
        are added.
        """
        count = 0 if host is None else len(host.token_ids)
        token_ids, places = np.zeros(size, np.int64), np.zeros(size, np.int64)
        slots = np.full((self._model.pages.num_columns, size), self._null_slot)
        if host is not None:
            token_ids[:count] = host.token_ids.numpy()
            places[:count] = self._decoder.places(host).numpy()
            slots[0, :count] = host.attention.slots.numpy()
            if host.more is not None:
                slots[1:, :count] = host.more.slots.numpy()
        return [token_ids, places, slots]

    @torch.inference_mode()
    def _record_size(self, size: int) -> None:
        """Record the pieces of batches of `size` tokens."""
        arrays = self._inputs(None, size)
        buffer = self._buffer[: num_bytes(arrays)]
        refill(buffer, arrays)
        token_ids, places, slots = views(buffer, arrays)
        recordings = [
            self._record(partial(self._compute, index, size, token_ids, places, slots))
            for index in range(self._decoder.num_layers + 1)
        ]
        self._pieces[size] = _Pieces(token_ids, recordings)

    def _compute(
        self, index: int, size: int, token_ids: Tensor, places: Tensor, slots: Tensor
    ) -> None:
        """All behind the attention of layer `index - 1` up to that of layer `index`."""
        decoder, residual = self._decoder, self._residual[:size]
        update: Tensor | None = None
        if index == 0:
            residual.copy_(decoder.embed(token_ids))
        else:
            update = decoder.after_attention(index - 1, residual, self._attended[:size])
        if index < decoder.num_layers:
            caches = self._model.caches
            kv, own = caches.views[index], slots[caches.columns[index]]
            query = decoder.before_attention(index, residual, update, places, kv, own)
            self._query[:size].copy_(query)
        elif update is not None:
            self._update[:size].copy_(update)
