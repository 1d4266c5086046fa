"""What single tokens spell: their exact bytes, and their texts beside log-probabilities.

These are encoded at once: a stream tells them five times, and keeps them to its end.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import Any

from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerBase

from app.wire.events import EncodedLogprob, PromptLogprob, TokenLogprob, TopLogprob, encode_json
from engine.api import PromptLogprobs, TokenLogprobs

_LOWEST = -1e30
"""In place of minus infinity, which JSON has not."""


class TokenTexts:
    """Log-probabilities as clients read them: with each token's text and bytes."""

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


class TokenBytes(dict[int, bytes]):
    """What each token adds to the bytes of a text, looked up once.

    Special tokens add nothing, but those that are `shown`.
    """

    def __init__(self, tokenizer: Tokenizer, shown: Collection[str] = ()) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        super().__init__(
            {
                token_id: token.content.encode() if token.content in shown else b""
                for token_id, token in added.items()
                if token.special
            }
        )

    def __missing__(self, token_id: int) -> bytes:
        token = self._tokenizer.id_to_token(token_id) or ""
        spelled = spelled_bytes(token)
        self[token_id] = token.encode() if spelled is None else spelled
        return self[token_id]


@lru_cache(maxsize=4)
def token_bytes(
    tokenizer: PreTrainedTokenizerBase, shown: tuple[str, ...] = ()
) -> TokenBytes | None:
    """The table of a byte-level BPE; `None` for any other tokenizer.

    With it a text is its tokens' bytes joined, whatever stands beside them. Elsewhere a token may
    be written differently at the start of a text, or lose a space beside another.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if (
        backend is None
        or not isinstance(backend.decoder, decoders.ByteLevel)
        or not isinstance(backend.model, models.BPE)
        or tokenizer.clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output
    ):
        return None
    return TokenBytes(backend, shown)


def spelled_bytes(token: str) -> bytes | None:
    """The bytes that a token of byte-level BPE spells; `None` where it spells none."""
    alphabet = _byte_alphabet()
    if all(character in alphabet for character in token):
        return bytes(alphabet[character] for character in token)
    return None


@lru_cache(maxsize=1)
def _byte_alphabet() -> dict[str, int]:
    """Byte-level BPE's printable stand-in of every byte (Radford et al., 2019), inverted."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in printable]
    alphabet.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return alphabet
