"""Log-probabilities as clients read them: each token's text and its exact bytes.

They are encoded at once: a stream tells them five times, and keeps them to its end.
"""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedTokenizerBase

from app.generation.token_bytes import spelled_bytes
from app.wire.events import EncodedLogprob, PromptLogprob, TokenLogprob, TopLogprob, encode_json
from engine.api import PromptLogprobs, TokenLogprobs

_LOWEST = -1e30
"""In place of minus infinity, which JSON has not."""


class TokenTexts:
    """Texts and bytes of single tokens, for one tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer

    def describe(self, token_id: int, logprobs: TokenLogprobs, top: int) -> EncodedLogprob:
        """One generated token with its `top` likeliest alternatives."""
        described = TokenLogprob(
            **self._fields(token_id, logprobs.logprob),
            top_logprobs=[
                TopLogprob(**self._fields(other, logprob)) for other, logprob in logprobs.top[:top]
            ],
        )
        return EncodedLogprob(encode_json(described))

    def describe_prompt(self, token_id: int, logprobs: PromptLogprobs) -> EncodedLogprob:
        """One token of a prompt and its alternatives, by their ids; its own comes first."""
        described = {str(token_id): self._ranked(token_id, logprobs.logprob, logprobs.rank)}
        for rank, (other, logprob) in enumerate(logprobs.top, 1):
            described.setdefault(str(other), self._ranked(other, logprob, rank))
        return EncodedLogprob(encode_json(described))

    def _ranked(self, token_id: int, logprob: float, rank: int) -> PromptLogprob:
        text = str(self._tokenizer.decode([token_id], skip_special_tokens=False))
        return PromptLogprob(logprob=max(logprob, _LOWEST), rank=rank, decoded_token=text)

    def _fields(self, token_id: int, logprob: float) -> dict[str, Any]:
        text = str(self._tokenizer.decode([token_id], skip_special_tokens=False))
        exact = self._exact_bytes(token_id) if "\ufffd" in text else None
        encoded = text.encode() if exact is None else exact
        return {"token": text, "bytes": list(encoded), "logprob": max(logprob, _LOWEST)}

    def _exact_bytes(self, token_id: int) -> bytes | None:
        """The bytes of a token that is only part of a character."""
        token = str(self._tokenizer.convert_ids_to_tokens(token_id))
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes.fromhex(token[3:5])
        return spelled_bytes(token)
