"""What a running engine is."""

from __future__ import annotations

import msgspec


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a running engine is; constant from ready to close."""

    model: str
    device: str
    dtype: str
    block_size: int
    num_blocks: int
    block_bytes: int = 0
    """What a block takes of the KV memory, a draft model's part included."""
    num_host_blocks: int = 0
    """Blocks that the host tier holds."""
    max_context_tokens: int
    """Prompt plus output of one sequence, at most: never more than the block pool holds."""
    max_running_sequences: int
    """How many sequences run at once, at most, and so how many one request may have."""
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    hash_extras: bytes
    """What else changes KV besides tokens (weights, dtype); part of every block hash."""
    rotary_switch: int | None = None
    """A sequence of more tokens than this is computed with other rotary factors, from its first
    token on, and shares no block with shorter ones; `None`: one set of factors serves all."""
    has_grammars: bool = False
    """Whether outputs can be held to a grammar: the model has a tokenizer that tells its tokens'
    bytes, and an end token."""
    logit_error: float = 0.0
    """How far logits are from the original model's on a few tokens, relatively."""
