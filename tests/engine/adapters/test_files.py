"""PEFT's files: what is read of them, and what is refused, by its name."""

from __future__ import annotations

import json
import math
import random
import struct
from typing import Any

import numpy as np
import pytest

from engine.adapters.config import BadAdapter, read_config
from engine.adapters.files import AdapterCheck, CheckedAdapter

CONFIG: dict[str, Any] = {
    **{"peft_type": "LORA", "r": 2, "lora_alpha": 8, "bias": "none", "use_rslora": False},
    **{"target_modules": ["q_proj"], "lora_dropout": 0.1, "task_type": "CAUSAL_LM"},
    **{"use_dora": False, "modules_to_save": None, "alpha_pattern": {}, "rank_pattern": {}},
}
LINEARS = {"model.q_proj": (3, 5), "model.k_proj": (3, 4)}
NAMES = [f"base_model.model.model.q_proj.lora_{one}.weight" for one in "AB"]


def config(**changes: Any) -> bytes:
    return json.dumps(CONFIG | changes).encode()


def matrix(start: int, *shape: int, dtype: str = "F32") -> dict[str, Any]:
    size = math.prod(shape) * (4 if dtype == "F32" else 2)
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, start + size]}


def tensors(down: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """The header of a right file, or of one whose first matrix is another, or has `changes`."""
    first = (matrix(0, 2, 3) if down is None else down) | changes
    return dict(zip(NAMES, (first, matrix(24, 5, 2)), strict=True))


def file(header: dict[str, Any] | bytes, data: bytes | None = None) -> bytes:
    said = header if isinstance(header, bytes) else json.dumps(header).encode()
    numbers = np.arange(16, dtype=np.float32).tobytes() if data is None else data
    return struct.pack("<Q", len(said)) + said + numbers


def check(weights: bytes, said: bytes | None = None, piece: int = 7) -> CheckedAdapter:
    one = AdapterCheck(config() if said is None else said, LINEARS)
    for start in range(0, len(weights), piece):
        one.feed(weights[start : start + piece])
    return one.finish()


def test_what_acts_is_read_whatever_pieces_it_comes_in() -> None:
    found = check(file(tensors()))
    assert (found.rank, found.modules, found.invocation) == (2, ("q_proj",), ())
    assert found.num_bytes == len(file(tensors()))
    for piece in (1, 3, 64, 10_000):
        assert check(file(tensors()), piece=piece) == found


def test_equal_weights_are_equal_whatever_they_are_called() -> None:
    found = check(file(tensors()))
    said = config(base_model_name_or_path="another", lora_dropout=0.0, revision="2")
    assert check(file(tensors()), said).digest == found.digest
    acting = ({"lora_alpha": 9}, {"use_rslora": True}, {"alora_invocation_tokens": [5]})
    for other in (config(**changes) for changes in acting):
        assert check(file(tensors()), other).digest != found.digest
    assert check(file(tensors(), bytes(64))).digest != found.digest


def test_scales_are_those_of_peft() -> None:
    said = {"rank_pattern": {"q_proj": 4}, "alpha_pattern": {"1.k_proj": 32}}
    read = read_config(config(**said))
    assert read.scale_of("model.0.q_proj") == 2.0
    assert read.scale_of("model.1.k_proj") == 16.0
    assert read.scale_of("model.0.v_proj") == 4.0
    stabilised = read_config(config(r=4, use_rslora=True))
    assert stabilised.scale_of("model.0.q_proj") == 4.0


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("peft_type", {"peft_type": "PROMPT_TUNING"}),
        ("bias", {"bias": "all"}),
        ("use_dora", {"use_dora": True}),
        ("modules_to_save", {"modules_to_save": ["lm_head"]}),
        ("trainable_token_indices", {"trainable_token_indices": [1]}),
        ("target_parameters", {"target_parameters": ["experts"]}),
        ("target_parameters", {"target_parameters": ["q_proj.weight"]}),
        ("target_parameters", {"target_parameters": [["gate_up_proj"]]}),
        ("target_parameters", {"target_parameters": "gate_up_proj"}),
        (
            "target_parameters",
            {"target_parameters": ["experts.down_proj"], "alora_invocation_tokens": [5]},
        ),
        ("fan_in_fan_out", {"fan_in_fan_out": True}),
        ("layer_replication", {"layer_replication": [[0, 1]]}),
        ("lora_bias", {"lora_bias": True}),
        ("init_lora_weights", {"init_lora_weights": "pissa_niter_4"}),
        ("loftq_config", {"loftq_config": {"loftq_bits": 4}}),
        ("of_next_year", {"of_next_year": 1}),
        ("r", {"r": 0}),
        ("r", {"r": 257}),
        ("r", {"r": True}),
        ("lora_alpha", {"lora_alpha": float("inf")}),
        ("lora_alpha", {"lora_alpha": None}),
        ("lora_alpha", {"lora_alpha": 10**400}),
        ("alpha_pattern", {"alpha_pattern": {"q_proj": -(10**400)}}),
        ("use_rslora", {"use_rslora": "yes"}),
        ("alpha_pattern", {"alpha_pattern": {"(a+)+b": 1}}),
        ("rank_pattern", {"rank_pattern": {"q_proj": -1}}),
        ("rank_pattern", {"rank_pattern": [1]}),
        ("rank_pattern", {"rank_pattern": {"q_proj": 1, r".*\.q_proj": 2}}),
        ("alora_invocation_tokens", {"alora_invocation_tokens": []}),
        ("alora_invocation_tokens", {"alora_invocation_tokens": [-1]}),
    ],
)
def test_what_is_not_served_is_refused_by_its_name(field: str, changes: dict[str, Any]) -> None:
    with pytest.raises(BadAdapter, match=f"^{field}: "):
        read_config(config(**changes))


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{", b'{"r": 1, "r": 2}', b"[" * 60_000, b" " * 65_537]
)
def test_what_is_no_configuration_is_refused(data: bytes) -> None:
    with pytest.raises(BadAdapter, match=r"^adapter_config\.json: "):
        read_config(data)


EXPERTS = {"model.0.experts.gate_up_proj": (3, 4, 2), "model.0.experts.down_proj": (2, 3, 2)}
"""Of two experts."""


def of_experts(inner: tuple[int, int], outer: tuple[int, int]) -> tuple[dict[str, Any], int]:
    """The header of matrices of rank 1 that go from so many inputs to outputs, and their bytes."""
    header, at = {}, 0
    for module, (inputs, outputs) in (("experts.base_layer", inner), ("experts", outer)):
        for matrix_name, shape in (("A", (2, inputs)), ("B", (outputs, 2))):
            name = f"base_model.model.model.0.{module}.lora_{matrix_name}.weight"
            header[name] = matrix(at, *shape)
            at = header[name]["data_offsets"][1]
    return header, at


def check_experts(header: dict[str, Any], size: int, targets: list[str]) -> CheckedAdapter:
    one = AdapterCheck(config(r=1, target_parameters=targets), EXPERTS)
    one.feed(file(header, bytes(size)))
    return one.finish()


BOTH = ["experts.gate_up_proj", "model.0.experts.down_proj"]


def test_experts_are_changed_by_what_wraps_them() -> None:
    found = check_experts(*of_experts((3, 4), (2, 3)), BOTH)
    assert (found.rank, found.modules) == (1, ("down_proj", "gate_up_proj"))
    again = check_experts(*of_experts((3, 4), (2, 3)), BOTH[::-1])
    assert again.digest == found.digest


@pytest.mark.parametrize(
    ("inner", "outer", "targets"),
    [
        ((2, 3), (3, 4), BOTH),  # the other way round
        ((3, 4), (2, 3), BOTH[:1]),  # one more than is said
        ((3, 4), (2, 3), []),
        ((3, 5), (2, 3), BOTH),
    ],
)
def test_other_experts_than_the_bases_are_refused(
    inner: tuple[int, int], outer: tuple[int, int], targets: list[str]
) -> None:
    with pytest.raises(BadAdapter, match=r"^model\.0\.experts"):
        check_experts(*of_experts(inner, outer), targets)


HEADER = json.dumps(tensors()).encode()
EMBEDDING = "base_model.model.model.embed_tokens.lora_embedding_A"
BAD_FILES: dict[str, bytes] = {
    "empty": b"",
    "of no header": b"\x00" * 8,
    "header of 4 GB": struct.pack("<Q", 1 << 32) + b"{}",
    "header that is cut": file(tensors())[:30],
    "data that is cut": file(tensors())[:-1],
    "data that goes on": file(tensors()) + b"\x00",
    "no tensors": file({}),
    "header of zeros": file(b"\x00" * 100),
    "a name twice": file(HEADER[:-1] + b"," + HEADER[1:]),
    "one matrix": file({NAMES[0]: matrix(0, 2, 3)}, bytes(24)),
    "another dtype": file(tensors(dtype="I64")),
    "no dtype": file(tensors(dtype=["F32"])),
    "another rank": file(tensors(shape=[3, 2])),
    "a vector": file(tensors(shape=[6])),
    "fewer bytes than its shape": file(tensors(data_offsets=[0, 20])),
    "a hole": file(tensors(matrix(0, 2, 2)), bytes(64)),
    "overlaps": file(tensors(matrix(24, 2, 3))),
    "negative numbers": file(tensors(shape=[-2, -3])),
    "true numbers": file(tensors(data_offsets=[False, 24])),
    "an embedding": file({EMBEDDING: matrix(0, 2, 3)}),
    "not finite": file(tensors(), np.full(16, np.nan, np.float32).tobytes()),
    "infinite": file(tensors(), np.full(16, np.inf, np.float32).tobytes()),
}


@pytest.mark.parametrize("name", BAD_FILES)
@pytest.mark.parametrize("piece", [5, 10_000])
def test_a_file_that_is_not_right_is_refused(name: str, piece: int) -> None:
    with pytest.raises(BadAdapter):
        check(BAD_FILES[name], piece=piece)


def test_what_the_base_does_not_have_is_refused() -> None:
    named = [name.replace("q_proj", "x_proj") for name in NAMES]
    with pytest.raises(BadAdapter, match=r"^model\.x_proj: is no linear layer"):
        check(file(dict(zip(named, tensors().values(), strict=True))))
    named = [name.replace("q_proj", "k_proj") for name in NAMES]
    with pytest.raises(BadAdapter, match=r"^model\.k_proj: has 3 inputs and 4 outputs"):
        check(file(dict(zip(named, tensors().values(), strict=True))))


@pytest.mark.parametrize("name", ["\ud800", "x" * 1_000_000])
def test_what_is_refused_can_be_told_whatever_it_is_called(name: str) -> None:
    with pytest.raises(BadAdapter) as refused:
        check(file({name: matrix(0, 2, 3)}), piece=10_000)
    assert len(str(refused.value).encode()) < 1000


def test_thousands_of_names_of_modules_take_no_time() -> None:
    said = config(alpha_pattern={f"q_{number}": 1 for number in range(5000)} | {"q_proj": 32})
    read = read_config(said)
    assert {read.scale_of(f"model.{number}.q_proj") for number in range(100)} == {
        16.0
    }  # as expressions they take minutes


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_numbers_of_two_bytes_are_looked_at(dtype: str) -> None:
    both = {NAMES[0]: matrix(0, 2, 3, dtype=dtype), NAMES[1]: matrix(12, 5, 2, dtype=dtype)}
    assert check(file(both, bytes(32))).rank == 2
    infinite = struct.pack("<H", 0x7C00 if dtype == "F16" else 0x7F80)
    with pytest.raises(BadAdapter, match="not finite"):
        check(file(both, bytes(30) + infinite))


def test_a_byte_that_is_another_is_refused_or_changes_the_digest() -> None:
    rng, right = random.Random(5), file(tensors())
    digest = check(right).digest
    for _ in range(2000):
        at = rng.randrange(len(right))
        wrong = right[:at] + bytes([right[at] ^ 1 << rng.randrange(8)]) + right[at + 1 :]
        try:
            assert check(wrong, piece=1000).digest != digest
        except BadAdapter:
            continue
