"""Which markers are tokens of their own, as far as grammars are concerned."""

from __future__ import annotations

from collections.abc import Collection

from transformers import PreTrainedTokenizerBase


def control_tokens(tokenizer: PreTrainedTokenizerBase, markers: Collection[str]) -> dict[str, int]:
    """Those of `markers` that no other tokens can spell in a grammar, with their ids.

    For `llguidance` added tokens are such that are special, or stand in angle brackets.
    """
    return {
        token.content: token_id
        for token_id, token in tokenizer.added_tokens_decoder.items()
        if token.content in markers
        and (token.special or (token.content[0] == "<" and token.content[-1] == ">"))
    }
