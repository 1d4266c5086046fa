from hypothesis import given
from hypothesis import strategies as st

from engine.api import Namespaces
from engine.blocks.hashing import Extras, block_hashes, derive_key, extend_block_hashes

TENANT, ANN, BOB = (bytes([n]) * 32 for n in (1, 2, 3))


def namespaces(private: bytes = ANN, shared_tokens: int = 0) -> Namespaces:
    return Namespaces(shared_key=TENANT, private_key=private, shared_tokens=shared_tokens)


def test_only_full_blocks_are_hashed() -> None:
    assert len(block_hashes(range(31), 16, namespaces())) == 1
    assert len(block_hashes(range(32), 16, namespaces())) == 2
    assert block_hashes(range(15), 16, namespaces()) == []


def test_a_hash_covers_everything_before_its_block() -> None:
    one = block_hashes([1, 2, 3, 4, 5, 6], 2, namespaces())
    other = block_hashes([9, 2, 3, 4, 5, 6], 2, namespaces())
    assert not set(one) & set(other)


def test_the_block_that_straddles_the_border_belongs_to_what_follows() -> None:
    tokens = list(range(12))
    ann = block_hashes(tokens, 4, namespaces(ANN, shared_tokens=7))
    bob = block_hashes(tokens, 4, namespaces(BOB, shared_tokens=7))
    assert ann[0] == bob[0]
    assert not set(ann[1:]) & set(bob[1:])


def test_extras_change_every_hash() -> None:
    assert block_hashes(range(8), 4, namespaces(), Extras(b"bf16")) != block_hashes(
        range(8), 4, namespaces(), Extras(b"fp32")
    )


@given(st.lists(st.integers(0, 2**32 - 1), max_size=60), st.integers(0, 60), st.integers(1, 9))
def test_hashing_in_parts_equals_hashing_at_once(tokens: list[int], cut: int, size: int) -> None:
    where = namespaces(shared_tokens=cut)
    parts: list[bytes] = []
    extend_block_hashes(parts, tokens[:cut], size, where)
    extend_block_hashes(parts, tokens, size, where)
    assert parts == block_hashes(tokens, size, where)


def test_derived_keys_cannot_be_confused() -> None:
    keys = [derive_key(TENANT, *labels) for labels in (("ab", "c"), ("a", "bc"), ("abc",), ())]
    assert len(set(keys)) == 4
    assert derive_key(ANN, "ab", "c") not in keys
    assert all(len(key) == 32 for key in keys)
