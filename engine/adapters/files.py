"""PEFT's two files of an adapter, checked before anything is kept of them.

`adapter_config.json` says what its weights mean, and `adapter_model.safetensors` has them. What an
adapter asks for that is not served is refused by its name; whatever only says how it was trained,
or which layers were chosen for that, is passed over. Nothing is unpickled.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

MOST_CONFIG_BYTES: Final = 1 << 16
MOST_HEADER_BYTES: Final = 1 << 22
MOST_RANK: Final = 256
DIGEST_BYTES: Final = 32

_MOST_INVOCATION: Final = 256
"""Tokens."""
_SIZE_BYTES: Final = 8
"""Of the number that a safetensors file begins with."""
_PREFIX: Final = "base_model.model."
_SIZES: Final = {"F32": 4, "F16": 2, "BF16": 2}
_PASSED_OVER: Final = {
    # what it was made from, and for what
    *("auto_mapping", "base_model_name_or_path", "inference_mode", "peft_version", "revision"),
    "task_type",
    # which layers were chosen: the weights tell
    *("exclude_modules", "layers_pattern", "layers_to_transform", "target_modules"),
    # how it was begun and trained
    *("ensure_weight_tying", "eva_config", "lora_dropout", "megatron_core", "qalora_group_size"),
    "runtime_config",
    # what is read below
    *("alora_invocation_tokens", "alpha_pattern", "bias", "lora_alpha", "peft_type", "r"),
    *("init_lora_weights", "rank_pattern", "use_rslora"),
}
"""Of a configuration; of all else there is to be nothing."""
_BEGINNINGS: Final = (None, False, True, "gaussian", "orthogonal", "eva")
"""Of weights, which leave those of the base as they are."""
_Number = TypeVar("_Number", int, float)
_MOST_NAME: Final = 200
_NAME: Final = re.compile(rf"\^?[A-Za-z0-9_.]{{1,{_MOST_NAME}}}")
"""Of what a pattern stands for. PEFT reads it as a regular expression; others than names may take
for ever to match."""
_MOST_TOLD: Final = 300


class BadAdapter(ValueError):
    """An adapter that is not served."""

    def __init__(self, field: str, message: str) -> None:
        """`field` is one of the configuration, or the name of a tensor or a file.

        Both may be what a file says, whatever that is: of too much of it only the beginning is
        told, and nothing that is no text.
        """
        self.field, self.message = _told(field), _told(message)
        super().__init__(f"{self.field}: {self.message}")


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """What acts of a configuration."""

    rank: int
    alpha: float
    is_stabilised: bool
    """Whether the square root of the rank divides what is added (rsLoRA: Kalajdzievski, 2023)."""
    ranks: Mapping[str, int]
    """Of modules whose names end with these."""
    alphas: Mapping[str, float]
    """The same."""
    invocation: tuple[int, ...]
    """Tokens behind which it acts, these included, where they stand last in a prompt (activated
    LoRA: Greenewald et al., 2025); empty: everywhere."""

    def rank_of(self, module: str) -> int:
        """Of what is changed in a module."""
        return _matching(self.ranks, module, self.rank)

    def scale_of(self, module: str) -> float:
        """What is added there is multiplied by that."""
        rank = self.rank_of(module)
        alpha = _matching(self.alphas, module, self.alpha)
        return alpha / (math.sqrt(rank) if self.is_stabilised else rank)


class TensorHeader(NamedTuple):
    """Where a tensor lies in its file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    """The byte where it begins, behind the header."""
    end: int


@dataclass(frozen=True, slots=True)
class AdapterTensors:
    """What a header says: two matrices for each module that is changed."""

    modules: Mapping[str, tuple[TensorHeader, TensorHeader]]
    """By names as the base has them: [rank, inputs] and [outputs, rank]."""
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


def read_config(data: bytes) -> AdapterConfig:
    """Read `adapter_config.json`. Raises `BadAdapter`."""
    if len(data) > MOST_CONFIG_BYTES:
        raise BadAdapter("adapter_config.json", f"has more than {MOST_CONFIG_BYTES} bytes")
    fields = _parsed(data, "adapter_config.json")
    if fields.get("peft_type") != "LORA":
        raise BadAdapter("peft_type", f"{fields.get('peft_type')!r} is not served, but LORA")
    if fields.get("bias", "none") != "none":
        raise BadAdapter("bias", "trained biases are not served")
    if fields.get("init_lora_weights") not in _BEGINNINGS:
        raise BadAdapter("init_lora_weights", "changes the base, too: convert it to plain LoRA")
    for name, value in fields.items():
        # `megatron_core` stands there unless it is used, as `megatron_config` says.
        if name not in _PASSED_OVER and value:
            raise BadAdapter(name, "is not served")
    return AdapterConfig(
        rank=_whole(fields.get("r"), "r", MOST_RANK),
        alpha=_finite(fields.get("lora_alpha"), "lora_alpha"),
        is_stabilised=_flag(fields.get("use_rslora", False), "use_rslora"),
        ranks=_pattern(fields, "rank_pattern", lambda one, name: _whole(one, name, MOST_RANK)),
        alphas=_pattern(fields, "alpha_pattern", _finite),
        invocation=_tokens(fields.get("alora_invocation_tokens")),
    )


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


def check_linears(tensors: AdapterTensors, linears: Mapping[str, tuple[int, int]]) -> None:
    """Raise `BadAdapter` for what is no linear layer of the base, or has other numbers of inputs
    and outputs than `linears` say.
    """
    for module, (down, up) in tensors.modules.items():
        shape = linears.get(module)
        if shape is None:
            raise BadAdapter(module, "is no linear layer of the model that can be changed")
        if (down.shape[1], up.shape[0]) != shape:
            found = f"{down.shape[1]} inputs and {up.shape[0]} outputs"
            raise BadAdapter(module, f"has {shape[0]} inputs and {shape[1]} outputs, not {found}")


class AdapterCheck:
    """Reads an adapter as it comes, and keeps nothing of it but a little of its end."""

    def __init__(self, config: bytes, linears: Mapping[str, tuple[int, int]]) -> None:
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
            rank=max(down.shape[0] for down, _ in tensors.modules.values()),
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
    fields = _parsed(header, "adapter_model.safetensors")
    fields.pop("__metadata__", None)
    headers = {name: _header(name, value) for name, value in fields.items()}
    modules: dict[str, tuple[TensorHeader, TensorHeader]] = {}
    for name in headers:
        module, _, matrix = name.removesuffix(".weight").rpartition(".")
        if not name.startswith(_PREFIX) or matrix not in ("lora_A", "lora_B"):
            raise BadAdapter(name, "is no matrix of LoRA of a linear layer")
        if matrix == "lora_A":
            other = headers.get(f"{module}.lora_B.weight")
            if other is None:
                raise BadAdapter(name, "has no lora_B beside it")
            own = module.removeprefix(_PREFIX)
            modules[own] = _pair(own, headers[name], other, config.rank_of(own))
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
    both = (one for pair in tensors.modules.values() for one in pair)
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


def _pair(
    module: str, down: TensorHeader, up: TensorHeader, rank: int
) -> tuple[TensorHeader, TensorHeader]:
    if down.shape[0] != rank or up.shape[1] != rank:
        raise BadAdapter(module, f"its matrices are not of rank {rank}")
    return down, up


def _are_finite(data: bytes, dtype: str) -> bool:
    if dtype == "BF16":
        exponents = np.frombuffer(data, np.uint16) & 0x7F80
        return not bool((exponents == 0x7F80).any())
    kind: type[np.floating[Any]] = np.float32 if dtype == "F32" else np.float16
    return bool(np.isfinite(np.frombuffer(data, kind)).all())


def _told(text: str) -> str:
    return text[:_MOST_TOLD].encode(errors="backslashreplace").decode()


def _parsed(data: bytes, file: str) -> dict[str, Any]:
    """Raises `BadAdapter` for what is no JSON object, or has a name twice."""
    try:
        found = json.loads(data, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise BadAdapter(file, f"cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise BadAdapter(file, "is no JSON object")
    return found


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands there twice")
    return found


def _matching(by_name: Mapping[str, _Number], module: str, otherwise: _Number) -> _Number:
    """As PEFT does it: of the first name that a module's name ends with. A point is a point here:
    thousands of regular expressions, each read anew, would take minutes.
    """
    last: str = module[-_MOST_NAME - 1 :]
    ends = {f"^{module}", module, *(last[at + 1 :] for at, one in enumerate(last) if one == ".")}
    return next((value for name, value in by_name.items() if name in ends), otherwise)


def _pattern(
    fields: Mapping[str, Any], field: str, read: Callable[[Any, str], Any]
) -> dict[str, Any]:
    found = fields.get(field) or {}
    if not isinstance(found, dict):
        raise BadAdapter(field, "is no JSON object")
    for name in found:
        if not _NAME.fullmatch(name):
            raise BadAdapter(field, f"{name!r} is no name, or the end of one")
    return {name: read(value, field) for name, value in found.items()}


def _whole(value: Any, field: str, most: int) -> int:
    if type(value) is not int or not 1 <= value <= most:
        raise BadAdapter(field, f"must be 1 ... {most}")
    return value


def _finite(value: Any, field: str) -> float:
    # A whole number may be too large to be one.
    if type(value) not in (int, float) or not abs(value) <= sys.float_info.max:
        raise BadAdapter(field, "must be a finite number")
    return float(value)


def _flag(value: Any, field: str) -> bool:
    if type(value) is not bool:
        raise BadAdapter(field, "must be true or false")
    return value


def _tokens(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    is_list = isinstance(value, list) and 1 <= len(value) <= _MOST_INVOCATION
    if not is_list or any(type(one) is not int or not 0 <= one < 1 << 31 for one in value):
        raise BadAdapter("alora_invocation_tokens", f"must be 1 ... {_MOST_INVOCATION} token ids")
    return tuple(value)
