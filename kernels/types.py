"""What passes through the doors: batches and shapes of attention, masks, products, layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

Activation = Literal["silu", "gelu_tanh", "relu2", "clamped_swiglu"]
Quantization = Literal["none", "int8", "int4"]


@dataclass(frozen=True, slots=True)
class PrefixGroups:
    """Runs of keys that several sequences of a batch share, block for block.

    Group g is the keys `begins[g]` up to `ends[g]` (multiples of the block size) of its members;
    they lie in the block table row of its first member. The keys of a sequence are its groups'
    runs, in the order of the groups and without gaps from key 0, and then those from
    `private_starts[s]` on. Groups nest: a sequence may be in several, one run behind the other.
    Only sequences with exactly one query are members. All tensors are int32 and lie on the compute
    device.
    """

    begins: Tensor  # [num_groups]
    ends: Tensor  # [num_groups]; begin == end: padding, to be skipped
    member_starts: Tensor  # [num_groups + 1], into members
    members: Tensor  # [num_memberships], rows of sequences, ascending within a group
    private_starts: Tensor  # [num_seqs]; 0 for a sequence in no group
    max_members: int  # of the largest group


class Chunk(NamedTuple):
    """Several queries of one sequence: its last tokens."""

    row: int
    """Of the batch."""
    first_token: int
    """The first of its queries among the packed tokens."""
    num_queries: int
    context_len: int


class Mutual(NamedTuple):
    """Queries of one sequence, side by side, that see each other: all keys up to the last one's."""

    row: int
    """Of the batch."""
    first_token: int
    """The first of them among the packed tokens."""
    num_queries: int
    position: int
    """Of the first of them in its sequence."""
    end: int
    """Behind the last key that they see."""


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """One step's packed batch; all tensors lie on the compute device.

    The queries of sequence s are the packed tokens `query_starts[s]` up to `query_starts[s + 1]`,
    and they are its last tokens: query i sits at position `context_lens[s] - query_len + i`.
    """

    block_tables: Tensor  # [num_seqs, max_blocks] int32, rows padded with 0
    query_starts: Tensor  # [num_seqs + 1] int32
    context_lens: Tensor  # [num_seqs] int32, tokens with KV, this step's new ones included
    slots: Tensor  # [num_tokens] int64, block * block_size + offset of each new token's KV
    max_query_len: int
    max_context_len: int
    groups: PrefixGroups | None = None
    batch_invariant: bool = False
    """A row's result must not depend on the others: groups are of whole splits then, or none."""
    chunks: tuple[Chunk, ...] | None = None
    """Every sequence with several queries, for the host to plan by. `None` where nobody said: then
    whoever plans reads the tensors, and waits for the device."""
    mutual: tuple[Mutual, ...] = ()
    """The queries that see more than those before them, in the host's memory."""
    mutual_in_windows: bool = False
    """Whether they do in layers with a window only."""

    @classmethod
    def of_one(cls, query_len: int, context_len: int, block_size: int) -> AttentionBatch:
        """One sequence on the CPU, with KV in the first blocks: to try attention with."""
        return cls(
            block_tables=torch.arange(-(-context_len // block_size), dtype=torch.int32)[None],
            query_starts=torch.tensor([0, query_len], dtype=torch.int32),
            context_lens=torch.tensor([context_len], dtype=torch.int32),
            slots=torch.zeros(query_len, dtype=torch.int64),
            max_query_len=query_len,
            max_context_len=context_len,
        )


@dataclass(frozen=True, slots=True)
class StateRuns:
    """The packed tokens of a step in runs, each of one sequence, which goes on from one state and
    leaves another.

    Runs of one sequence stand one behind the other: a run may read what the one before it has
    written, and may write where it reads.
    """

    starts: (
        Tensor  # [num_runs + 1] int32; the tokens of run r are `starts[r]` up to `starts[r + 1]`
    )
    sources: Tensor  # [num_runs, num_columns] int32: the pages that hold its state; -1: it is zero
    targets: Tensor  # [num_runs, num_columns] int32
    drawn: Tensor | None = None
    """[num_tokens] bool: which were drawn, and are no prompt's; `None`: none of them."""
    batch_invariant: bool = False
    """A token's result must not depend on which others are in its run."""


@dataclass(frozen=True, slots=True)
class StatePlace:
    """Where one of a layer's states lies among the pages of all of them.

    It has rows (heads, or channels) none of which is cut: neighbours that lie in one page are a
    segment.
    """

    segments: tuple[tuple[int, int, int, int], ...]
    """First row, number of rows, column, and the byte of the page where the first one begins."""
    shape: tuple[int, ...]
    """Of the whole state; its rows are the first dimension."""
    dtype: torch.dtype


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class LayerCaches:
    """Where each layer of a model keeps keys and values, or states, in the memory of all."""

    views: tuple[Tensor, ...]
    """By layer: [num_pages, 2, num_kv_heads, block_size, head_dim], as `kv` in
    `kernels.attention.write_kv`, where pages are the blocks."""
    columns: tuple[int, ...]
    """By layer: which of a step's block tables, and slots, name its pages."""
    memory: Tensor
    """The bytes of all: uint8 [num_pages, bytes of a page]."""
    states: tuple[StatePlace, ...] = ()
    """Of layers that have some, in their order."""


class Masks(NamedTuple):
    """A bit for each token of some rows of scores: whether it may be drawn."""

    places: Tensor  # [num_rows] int64: of each row its place in `words`; -1 where it may draw all
    words: Tensor  # [num_masked, num_words] int32, contiguous; lowest bits first


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What does not change from one call of a model's attention to the next."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    """Of queries and results."""
    block_size: int
    storage: torch.dtype
    """Of the KV memory: `dtype`, or a quantized type (`kernels.kv_format`)."""
    value_dim: int | None = None
    """Of latents: see `kernels.attention.attend`."""


class Linear(Protocol):
    """One product, with the weights that it needs."""

    in_features: int
    out_features: int
    nbytes: int
    """Memory of weights, scales and biases."""

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, in_features] to [tokens, out_features], in the type of `x`."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class LowRank:
    """Some ranks of an adapter's change to a product, in its type (LoRA, Hu et al., 2021)."""

    down: Tensor  # [rank, in_features], contiguous
    up: Tensor  # [rank, width], contiguous: to the outputs from `column` on
    column: int
    scale: float
    """Of what is added: `scale * x @ down.T @ up`."""
    experts: range | None = None
    """Whose ranks these are, as many of each, one expert's behind the other's; `None`: they are for
    all rows."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Adapter:
    """What is added to a model's products, by their numbers: whoever computes them says which."""

    changes: tuple[tuple[LowRank, ...], ...]
    pages: tuple[int, ...] = ()
    """Of the KV memory, which hold its weights."""


class AdaptedRows(NamedTuple):
    """The rows of a step that have an adapter; no row is in two of them."""

    adapter: Adapter
    rows: Tensor  # [num_rows] int64, on the compute device


@dataclass(frozen=True, slots=True)
class Norm:
    """An RMSNorm: what it multiplies by, any offset included, and its epsilon.

    One that centres what it is given first, and adds a bias behind, is a layer norm.
    """

    weight: Tensor
    eps: float
    bias: Tensor | None = None  # of the weight's type
    centres: bool = False


@dataclass(frozen=True, slots=True)
class Rotation:
    """Rotary tables, float32 [num_positions, rotary_dim / 2], any scaling included.

    Of a layer that rotates nothing `rotary_dim` is 0. Where factors depend on a sequence's length,
    the rows for long ones lie behind those for short ones.
    """

    cos: Tensor
    sin: Tensor


@dataclass(frozen=True, slots=True)
class LayerOptions:
    """All of a layer but its products."""

    num_heads: int
    num_kv_heads: int
    scale: float
    sliding_window: int | None
    softcap: float | None
    rotation: Rotation
    before_attention: Norm | None
    after_attention: Norm | None
    before_mlp: Norm | None
    after_mlp: Norm | None
    query_norm: Norm | None
    """Of each head; with the epsilon of `key_norm`, if there are both."""
    key_norm: Norm | None
    joint_norms: tuple[Norm, Norm] | None = None
    """Of all query heads together, and of all key heads."""
    is_parallel: bool = False
    """The feed-forward network does not see what attention has found."""
    is_plain: bool = False
    """Nothing is gated: `gate_up` has as many outputs as `down` has inputs."""
    sinks: Tensor | None = None  # float32 [num_heads]
    """Of attention: what a softmax sees beside the keys."""


@dataclass(frozen=True, slots=True)
class Dense:
    """A feed-forward network that all tokens go through: two products, an activation between."""

    gate_up: Linear
    down: Linear


Scores = Literal["softmax", "sigmoid", "softmax_near_best"]
"""What a router's results become before experts are chosen by them: shares of all experts, or
numbers of their own. Of the last, see `kernels.experts.route`."""


MOST_EXPERTS = 1024
"""Of a layer."""


@dataclass(frozen=True, slots=True)
class Routing:
    """How a token's experts, and what each of them counts, come of its router's results."""

    num_experts: int
    per_token: int
    scores: Scores
    correction: Tensor | None = None  # float32 [num_experts], added for the choice alone
    num_groups: int = 1
    """Of neighbouring experts, as many in each."""
    kept_groups: int = 1
    """Experts are chosen from so many groups: those whose two best ones together are best."""
    is_normalised: bool = True
    """What a token's experts count is divided by its sum."""
    least_sum: float = 0.0
    """That sum is at least this."""
    scale: float = 1.0
    """Of what they count."""
    margin: float = 0.0
    """Of `softmax_near_best`."""


class Experts(Protocol):
    """The networks that tokens are routed to, with the weights that they need."""

    num_experts: int
    nbytes: int
    """Memory of weights, scales and biases of all."""
    uses: Tensor
    """What calls have counted, int64 [num_experts + 2], on the device: the tokens of each expert,
    then the experts of whom some were, whose weights were read, and the calls. One of very many
    tokens reads them several times, and counts as so many."""

    def __call__(
        self,
        x: Tensor,
        chosen: Tensor,
        shares: Tensor,
        adapted: Sequence[AdaptedRows] = (),
        products: tuple[int, int] = (0, 0),
    ) -> Tensor:
        """The sum of what a token's experts make of it, each times its share.

        `x` is [tokens, hidden_size], and so is the result, in its type; `chosen` int32, `shares`
        float32, both [tokens, experts of a token], contiguous. Adapters of some tokens may change
        the `products` into experts and back, by these numbers of theirs.
        """
        ...


@dataclass(frozen=True, slots=True)
class Mixture:
    """A feed-forward network of experts, of which a router gives each token a few."""

    router: Linear
    """Of float32: [tokens, hidden_size] to [tokens, num_experts]."""
    routing: Routing
    experts: Experts
    shared: Dense | None = None
    """Beside them, for all tokens."""
    shared_gate: Linear | None = None
    """Of float32, to one number, whose sigmoid multiplies what `shared` gives."""


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """A layer as those of Llama and its like: attention, then a feed-forward network."""

    options: LayerOptions
    qkv: Linear
    out: Linear
    network: Dense | Mixture
