"""Token ids to text, as they arrive: whole characters only, and never part of a stop string."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

_INCOMPLETE = "�"
_CONTEXT_TOKENS = 6
"""Tokens decoded again before new ones: byte-fallback and space handling look back only a few."""


class Detokenizer:
    """Decodes one sequence incrementally.

    Text is held back while it ends in an incomplete UTF-8 character or in what may become a stop
    string. Special tokens (the end of a turn among them) are not part of the text.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop: Sequence[str] = ()) -> None:
        self.text = ""
        """Everything emitted so far."""
        self.stopped = False
        """Whether a stop string was seen; neither it nor what follows is ever emitted."""
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._longest_stop = max((len(text) for text in stop), default=0)
        self._ids: list[int] = []
        self._prefix_start = 0
        self._decoded_to = 0
        self._held = ""

    def push(self, token_ids: Sequence[int]) -> str:
        """Add tokens; returns the text that is safe to show now."""
        out: list[str] = []
        for token_id in token_ids:
            if not self.stopped:
                self._ids.append(token_id)
                out.append(self._release(self._decode_new(final=False), final=False))
        return "".join(out)

    def finish(self) -> str:
        """No more tokens will come; returns the text that was held back."""
        return "" if self.stopped else self._release(self._decode_new(final=True), final=True)

    def _decode_new(self, final: bool) -> str:
        """The text of the tokens not decoded yet, or "" while it ends inside a character.

        Decoding starts a few tokens back and drops what they decode to, since some tokenizers
        write a token differently at the start of a text.
        """
        before = self._decode(self._ids[self._prefix_start : self._decoded_to])
        whole = self._decode(self._ids[self._prefix_start :])
        if len(whole) <= len(before) or (whole.endswith(_INCOMPLETE) and not final):
            return ""
        self._decoded_to = len(self._ids)
        self._prefix_start = max(0, self._decoded_to - _CONTEXT_TOKENS)
        return whole[len(before) :]

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))

    def _release(self, new: str, final: bool) -> str:
        """Emit held-back text and `new` up to a stop string, or up to what may become one."""
        self._held += new
        found = [at for at in (self._held.find(stop) for stop in self._stop) if at >= 0]
        if found:
            self.stopped = True
            ready, self._held = self._held[: min(found)], ""
        elif final:
            ready, self._held = self._held, ""
        else:
            keep = self._possible_stop_length()
            ready = self._held[: len(self._held) - keep]
            self._held = self._held[len(ready) :]
        self.text += ready
        return ready

    def _possible_stop_length(self) -> int:
        """Length of the longest end of the held text that starts some stop string."""
        for length in range(min(len(self._held), self._longest_stop - 1), 0, -1):
            if any(stop.startswith(self._held[-length:]) for stop in self._stop):
                return length
        return 0
