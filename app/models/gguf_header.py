"""What a GGUF file says of its model, without its tokenizer and its weights.

The reader of `gguf` takes seconds, as it keeps each token.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from operator import index
from pathlib import Path
from typing import Any, Final

_MOST_BYTES: Final = 100_000_000
"""Behind these no header goes on."""
_MAGIC: Final = b"GGUF"
_FORMATS: Final = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
"""Of single values, by their types."""
_STRING: Final = 8
_ARRAY: Final = 9
_NAMES: Final = (
    ("token_embd.", "embed_tokens."),
    ("ffn_gate_inp.", "router."),
    ("_exps.", ".experts."),
)
"""Parts of names that `app.models.stored` knows by those of `transformers`."""
_FIELDS: Final = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
}
"""What configurations call the fields of an architecture."""


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor, by a name like those of `transformers`."""

    name: str
    kind: int
    """GGUF's number of its type."""
    shape: list[int]


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """The beginning of a file."""

    fields: dict[str, Any]
    """Those of single values."""
    tensors: list[GgufTensor]

    @property
    def architecture(self) -> str:
        """As GGUF calls it."""
        return str(self.fields["general.architecture"])

    def config(self) -> dict[str, Any]:
        """What a Hugging Face configuration would say of the model's size, as far as it is there.

        Raises `KeyError`.
        """
        found = {
            name: self.fields[field]
            for name, of in _FIELDS.items()
            if (field := f"{self.architecture}.{of}") in self.fields
        }
        shapes = {one.name: one.shape for one in self.tensors}
        return {**found, "vocab_size": shapes["embed_tokens.weight"][0]}


def read_header(path: Path) -> GgufHeader:
    """Raises `OSError`, or `ValueError` for a file that has none."""
    size = min(path.stat().st_size, _MOST_BYTES)
    with path.open("rb") as file, mmap(file.fileno(), size, access=ACCESS_READ) as mapped:
        try:
            return _Cursor(mapped).header()
        except (struct.error, IndexError, KeyError) as error:
            raise ValueError(f"{path} has no whole header") from error


class _Cursor:
    """A place in a file's bytes, which goes on with what is read."""

    def __init__(self, data: mmap) -> None:
        self._data = data
        self._at = 0

    def header(self) -> GgufHeader:
        if self._bytes(len(_MAGIC)) != _MAGIC:
            raise ValueError("this is no GGUF file")
        _, num_tensors, num_fields = self._value("I"), self._value("Q"), self._value("Q")
        fields = {}
        for _ in range(num_fields):
            name, value = self._string(), self._field(self._value("I"))
            if value is not None:
                fields[name] = value
        return GgufHeader(fields, [self._tensor() for _ in range(num_tensors)])

    def _tensor(self) -> GgufTensor:
        name = self._string()
        shape = [index(self._value("Q")) for _ in range(self._value("I"))]
        kind, _ = self._value("I"), self._value("Q")
        for theirs, ours in _NAMES:
            name = name.replace(theirs, ours)
        name = "lm_head.weight" if name == "output.weight" else name
        return GgufTensor(name, kind, shape[::-1])

    def _field(self, kind: int) -> Any:
        """A single value; `None` for an array, which is passed over."""
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._value(_FORMATS[kind])
        inner, count = self._value("I"), self._value("Q")
        if inner != _STRING:
            self._pass(count * struct.calcsize(f"<{_FORMATS[inner]}"))
            return None
        for _ in range(count):
            self._pass(self._value("Q"))
        return None

    def _string(self) -> str:
        return self._bytes(self._value("Q")).decode()

    def _value(self, kind: str) -> Any:
        (value,) = struct.unpack_from(f"<{kind}", self._data, self._at)
        self._at += struct.calcsize(f"<{kind}")
        return value

    def _pass(self, count: int) -> None:
        self._at += count
        if self._at > len(self._data):
            raise IndexError

    def _bytes(self, count: int) -> bytes:
        self._pass(count)
        return self._data[self._at - count : self._at]
