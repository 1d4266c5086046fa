"""Token ids to text, as they arrive: whole characters only."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from app.formats.reasoning.parser import ReasoningParser
from app.generation.stop_strings import StopStrings
from app.generation.token_texts import TokenBytes, token_bytes

_INCOMPLETE = "�"
_CONTEXT_TOKENS = 6
"""Tokens decoded again before new ones: byte-fallback and space handling look back only a few."""
_new_utf8_decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """Decodes one sequence incrementally.

    Text is held back while it ends in an incomplete UTF-8 character, or as `StopStrings` says.
    Special tokens (the end of a turn among them) are not part of the text, but those that are to be
    `shown`. A `sifter` takes reasoning out before stop strings are looked for.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        stop: Sequence[str] = (),
        min_tokens: int = 0,
        shown: tuple[str, ...] = (),
        sifter: ReasoningParser | None = None,
    ) -> None:
        table = token_bytes(tokenizer, shown)
        self._decoder = _Window(tokenizer, shown) if table is None else _Bytes(table)
        self._sifter = sifter
        self._stops = StopStrings(stop, min_tokens) if stop else None

    @property
    def stopped(self) -> bool:
        """Whether a stop string was seen; neither it nor what follows is ever emitted."""
        return self.stop_string is not None

    @property
    def stop_string(self) -> str | None:
        """The one that was seen."""
        return None if self._stops is None else self._stops.found

    def push(self, token_ids: Sequence[int]) -> str:
        """Add tokens; returns the text that is safe to show now."""
        if self._stops is None:
            return self._decoded(token_ids)
        ready = ""
        for token_id in token_ids:
            if self._stops.found is None:
                ready += self._stops.push(self._decoded((token_id,)))
        return ready

    def finish(self, *, cut: bool = False) -> str:
        """No more tokens will come, of an answer that may be `cut`; the text that was held back."""
        if self.stopped:
            return ""
        rest = self._decoder.finish()
        if self._sifter is not None:
            rest = self._sifter.push(rest) + self._sifter.finish(cut=cut)
        return rest if self._stops is None else self._stops.finish(rest)

    def _decoded(self, token_ids: Sequence[int]) -> str:
        text = self._decoder.push(token_ids)
        return text if self._sifter is None else self._sifter.push(text)


class _Bytes:
    """For tokens that are bytes: each is looked up, none decoded twice. Its text ends with a whole
    character; `finish` has what was held back, an incomplete one replaced, and "" when repeated.
    """

    def __init__(self, table: TokenBytes) -> None:
        self._table = table
        self._decode = _new_utf8_decoder("replace").decode

    def push(self, token_ids: Sequence[int]) -> str:
        table = self._table
        return self._decode(b"".join([table[token_id] for token_id in token_ids]))

    def finish(self) -> str:
        return self._decode(b"", True)


class _Window:
    """The same for any tokenizer: decodes the new tokens together with a few before them.

    What those decode to alone is dropped, since some tokenizers write a token differently at the
    start of a text.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, shown: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.added_tokens_decoder.items()
        hidden = (one for one, token in added if token.special and token.content not in shown)
        self._hidden = frozenset(hidden) if shown else None
        self._ids: list[int] = []
        """The tokens before, and those not decoded yet."""
        self._num_before = 0

    def push(self, token_ids: Sequence[int]) -> str:
        out: list[str] = []
        for token_id in token_ids:
            self._ids.append(token_id)
            out.append(self._decode_new(final=False))
        return "".join(out)

    def finish(self) -> str:
        return self._decode_new(final=True)

    def _decode_new(self, final: bool) -> str:
        """The text of the tokens not decoded yet, or "" while it ends inside a character."""
        before = self._decode(self._ids[: self._num_before])
        whole = self._decode(self._ids)
        if len(whole) <= len(before) or (whole.endswith(_INCOMPLETE) and not final):
            return ""
        self._ids = self._ids[-_CONTEXT_TOKENS:]
        self._num_before = len(self._ids)
        return whole[len(before) :]

    def _decode(self, ids: list[int]) -> str:
        if self._hidden is None:
            return str(self._tokenizer.decode(ids, skip_special_tokens=True))
        seen = [one for one in ids if one not in self._hidden]
        return str(self._tokenizer.decode(seen, skip_special_tokens=False))
