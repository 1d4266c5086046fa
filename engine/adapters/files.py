"""PEFT's two files of an adapter, checked before anything is kept of them.

`adapter_config.json` says what its weights mean (`engine.adapters.config`), and
`adapter_model.safetensors` has them. Nothing is unpickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import numpy as np

from engine.adapters.config import AdapterConfig, BadAdapter, parsed, read_config
from engine.adapters.names import of_text, parameter_names

MOST_HEADER_BYTES: Final = 1 << 22
DIGEST_BYTES: Final = 32

_SIZE_BYTES: Final = 8
"""Of the number that a safetensors file begins with."""
_PREFIX: Final = "base_model.model."
_SIZES: Final = {"F32": 4, "F16": 2, "BF16": 2}


class TensorHeader(NamedTuple):
    """Where a tensor lies in its file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    """The byte where it begins, behind the header."""
    end: int


class ChangeHeader(NamedTuple):
    """The matrices of a change."""

    down: TensorHeader  # [rank, inputs], of experts [num_experts * rank, inputs]
    up: TensorHeader  # [outputs, rank], of experts [outputs, rank * num_experts]
    num_experts: int
    """0: it is of a linear layer."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Numbers of inputs and outputs, and of experts, if it is of some."""
        return (self.down.shape[1], self.up.shape[0], self.num_experts)[
            : 3 if self.num_experts else 2
        ]

    @property
    def rank(self) -> int:
        """Of one expert."""
        return self.down.shape[0] // (self.num_experts or 1)


@dataclass(frozen=True, slots=True)
class AdapterTensors:
    """What a header says: two matrices for each module that is changed."""

    modules: Mapping[str, ChangeHeader]
    """By names as the base has them; experts by those of their parameters."""
    start: int
    """The byte of the file behind the header."""
    num_bytes: int
    """Of the whole file."""


@dataclass(frozen=True, slots=True)
class CheckedAdapter:
    """What is known of an adapter whose files were right."""

    digest: bytes
    """Of all that acts: equal ones do the same."""
    num_bytes: int
    """Of its weights' file."""
    rank: int
    """The largest."""
    modules: tuple[str, ...]
    """The last parts of the names of what it changes."""
    invocation: tuple[int, ...]
    """See `AdapterConfig`."""


def read_tensors(data: bytes, config: AdapterConfig) -> AdapterTensors:
    """Read the header of `adapter_model.safetensors`, `data`, or of its beginning.

    Raises `BadAdapter`.
    """
    size = header_bytes(data[:_SIZE_BYTES])
    return _tensors(data[_SIZE_BYTES : _SIZE_BYTES + size], config)


def header_bytes(beginning: bytes) -> int:
    """How long a file's header is, by its first 8 bytes. Raises `BadAdapter`."""
    size = int.from_bytes(beginning, "little")
    if len(beginning) < _SIZE_BYTES or not 2 <= size <= MOST_HEADER_BYTES:
        raise BadAdapter(
            "adapter_model.safetensors", f"its header has not 2 ... {MOST_HEADER_BYTES} bytes"
        )
    return size


def check_linears(tensors: AdapterTensors, linears: Mapping[str, tuple[int, ...]]) -> None:
    """Raise `BadAdapter` for what is no linear layer of the base, nor experts, or has other numbers
    of inputs, outputs and experts than `linears` say.
    """
    for module, change in tensors.modules.items():
        shape = linears.get(module)
        if shape is None:
            raise BadAdapter(module, "is no linear layer of the model that can be changed")
        if change.shape != shape:
            raise BadAdapter(module, f"has {_numbers(shape)}, not {_numbers(change.shape)}")


class AdapterCheck:
    """Reads an adapter as it comes, and keeps nothing of it but a little of its end."""

    def __init__(self, config: bytes, linears: Mapping[str, tuple[int, ...]]) -> None:
        """Of a model with these linear layers. Raises `BadAdapter` for its configuration."""
        self._config = read_config(config)
        self._linears = linears
        self._digest = blake2b(digest_size=DIGEST_BYTES)
        self._rest = b""
        """What has come and was not looked at."""
        self._size: int | None = None
        self._tensors: AdapterTensors | None = None
        self._left: list[TensorHeader] = []
        """By place, the next one first."""
        self._at = 0
        """The byte behind the header that comes next."""

    def feed(self, piece: bytes) -> None:
        """Look at more of `adapter_model.safetensors`. Raises `BadAdapter`."""
        self._rest += piece
        if self._tensors is None and not self._read_header():
            return
        while self._left and self._rest:
            one = self._left[0]
            width = _SIZES[one.dtype]
            count = min(one.end - self._at, len(self._rest)) // width * width
            if not count:
                return
            own, self._rest = self._rest[:count], self._rest[count:]
            if not _are_finite(own, one.dtype):
                raise BadAdapter("adapter_model.safetensors", "has numbers that are not finite")
            self._digest.update(own)
            self._at += count
            if self._at == one.end:
                del self._left[0]
        if self._rest and not self._left:
            raise BadAdapter("adapter_model.safetensors", "has more bytes than its header says")

    def finish(self) -> CheckedAdapter:
        """All has come. Raises `BadAdapter` where something is missing."""
        tensors = self._tensors
        if tensors is None or self._left or self._rest:
            raise BadAdapter("adapter_model.safetensors", "ends before its header says")
        return CheckedAdapter(
            digest=self._digest.digest(),
            num_bytes=tensors.num_bytes,
            rank=max(change.rank for change in tensors.modules.values()),
            modules=tuple(sorted({name.rpartition(".")[2] for name in tensors.modules})),
            invocation=self._config.invocation,
        )

    def _read_header(self) -> bool:
        """Whether it is there; then it is taken off the rest."""
        if self._size is None and len(self._rest) >= _SIZE_BYTES:
            self._size = header_bytes(self._rest[:_SIZE_BYTES])
        if self._size is None or len(self._rest) < _SIZE_BYTES + self._size:
            return False
        tensors = self._tensors = read_tensors(self._rest, self._config)
        check_linears(tensors, self._linears)
        self._rest = self._rest[tensors.start :]
        self._left = _in_order(tensors)
        self._digest.update(repr((self._config, sorted(tensors.modules.items()))).encode())
        return True


def _tensors(header: bytes, config: AdapterConfig) -> AdapterTensors:
    fields = parsed(header, "adapter_model.safetensors")
    fields.pop("__metadata__", None)
    headers = {name: _header(name, value) for name, value in fields.items()}
    pairs: dict[str, tuple[TensorHeader, TensorHeader]] = {}
    for name in headers:
        module, _, matrix = name.removesuffix(".weight").rpartition(".")
        if not name.startswith(_PREFIX) or matrix not in ("lora_A", "lora_B"):
            raise BadAdapter(name, "is no matrix of LoRA of a linear layer")
        if matrix == "lora_A":
            other = headers.get(f"{module}.lora_B.weight")
            if other is None:
                raise BadAdapter(name, "has no lora_B beside it")
            own = of_text(module.removeprefix(_PREFIX))
            if own in pairs:
                raise BadAdapter(name, "stands there twice, under two names")
            pairs[own] = headers[name], other
    names = parameter_names(pairs, config.changes)
    modules = {}
    for module, (down, up) in pairs.items():
        own = names.get(module, module)
        modules[own] = _change(own, down, up, config.rank_of(own), has_experts=module in names)
    if not modules or 2 * len(modules) != len(headers):
        raise BadAdapter("adapter_model.safetensors", "has not a lora_A for each lora_B")
    start = _SIZE_BYTES + len(header)
    size = sum(one.end - one.start for one in headers.values())
    tensors = AdapterTensors(modules, start, start + size)
    at = 0
    for one in _in_order(tensors):
        if one.start != at:
            raise BadAdapter("adapter_model.safetensors", "has holes between tensors, or overlaps")
        at = one.end
    return tensors


def _in_order(tensors: AdapterTensors) -> list[TensorHeader]:
    both = (one for change in tensors.modules.values() for one in (change.down, change.up))
    return sorted(both, key=lambda one: one.start)


def _header(name: str, value: Any) -> TensorHeader:
    try:
        dtype, numbers = value["dtype"], [*value["shape"], *value["data_offsets"]]
        rows, columns, start, end = numbers
    except (TypeError, KeyError, ValueError):
        raise BadAdapter(name, "is no matrix") from None
    if not isinstance(dtype, str) or dtype not in _SIZES:
        raise BadAdapter(name, f"is of {dtype!r}, and of none of {', '.join(_SIZES)}")
    if any(type(one) is not int or one < 0 for one in numbers) or not rows * columns:
        raise BadAdapter(name, "is no matrix")
    if end - start != rows * columns * _SIZES[dtype]:
        raise BadAdapter(name, "has another number of bytes than its shape")
    return TensorHeader(dtype, (rows, columns), start, end)


def _change(
    module: str, down: TensorHeader, up: TensorHeader, rank: int, *, has_experts: bool
) -> ChangeHeader:
    num_experts = max(1, down.shape[0] // rank) if has_experts else 0
    if not down.shape[0] == up.shape[1] == rank * (num_experts or 1):
        raise BadAdapter(module, f"its matrices are not of rank {rank}")
    return ChangeHeader(down, up, num_experts)


def _numbers(shape: tuple[int, ...]) -> str:
    inputs, outputs, *experts = shape
    return f"{inputs} inputs and {outputs} outputs" + "".join(f" of {n} experts" for n in experts)


def _are_finite(data: bytes, dtype: str) -> bool:
    if dtype == "BF16":
        exponents = np.frombuffer(data, np.uint16) & 0x7F80
        return not bool((exponents == 0x7F80).any())
    kind: type[np.floating[Any]] = np.float32 if dtype == "F32" else np.float16
    return bool(np.isfinite(np.frombuffer(data, kind)).all())
