"""Files of kept blocks: what is read is what was written, or an error."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from msgspec import structs

from engine.disk.files import (
    NO_PARENT,
    DamagedFile,
    Head,
    block_name,
    name_key,
    new_salt,
    read_blocks,
    read_head,
    write_file,
)

KEY = bytes(range(32))
BLOCK_BYTES = 96
TIMES = (1_000_000.0, 2_000_000.0)


def make_head(count: int = 3, key: bytes = KEY) -> Head:
    names = tuple(block_name(name_key(key), bytes([n]) * 16) for n in range(count))
    return Head(
        layout=b"layout",
        salt=new_salt(),
        parent=NO_PARENT,
        depth=0,
        lease_seconds=0.0,
        block_bytes=BLOCK_BYTES,
        names=names,
    )


def make_images(count: int = 3) -> list[memoryview]:
    return [memoryview(random.Random(n).randbytes(BLOCK_BYTES)) for n in range(count)]


def written(folder: Path) -> tuple[Path, Head]:
    head = make_head()
    path = folder / "one.kept"
    size = write_file(path, head, KEY, make_images(), TIMES)
    assert size == path.stat().st_size
    return path, head


def read(path: Path, head: Head, numbers: list[int], key: bytes = KEY) -> list[bytes]:
    targets = [bytearray(BLOCK_BYTES) for _ in numbers]
    wanted = [(number, head.names[number]) for number in numbers]
    read_blocks(path, key, wanted, [memoryview(target) for target in targets])
    return [bytes(target) for target in targets]


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    path, head = written(tmp_path)
    found, stat = read_head(path)
    assert found == head
    assert (stat.st_atime, stat.st_mtime) == TIMES
    assert stat.st_mode & 0o777 == 0o600
    images = [bytes(image) for image in make_images()]
    assert read(path, head, [0, 1, 2]) == images
    assert read(path, head, [2, 1]) == [images[2], images[1]]
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_on_the_disk_shows_what_the_blocks_hold(tmp_path: Path) -> None:
    path, _ = written(tmp_path)
    content = path.read_bytes()
    assert not any(bytes(image[:8]) in content for image in make_images())
    assert bytes([1]) * 16 not in content, "the hash by which others find the block"


def test_two_files_of_the_same_blocks_have_nothing_in_common(tmp_path: Path) -> None:
    contents = []
    for name in ("one.kept", "two.kept"):
        write_file(tmp_path / name, make_head(), KEY, make_images(), TIMES)
        contents.append((tmp_path / name).read_bytes()[-3 * (BLOCK_BYTES + 16) :])
    one, two = contents
    assert sum(a == b for a, b in zip(one, two, strict=True)) < len(one) / 16


def test_another_key_opens_nothing(tmp_path: Path) -> None:
    path, head = written(tmp_path)
    with pytest.raises(DamagedFile, match="another key"):
        read(path, head, [0], bytes(32))


def test_a_file_that_was_replaced_by_another_one_is_not_read(tmp_path: Path) -> None:
    path, head = written(tmp_path)
    other = structs.replace(make_head(), names=tuple(reversed(head.names)))
    write_file(tmp_path / "two.kept", other, KEY, make_images(), TIMES)
    os.replace(tmp_path / "two.kept", path)
    with pytest.raises(DamagedFile, match="other blocks"):
        read(path, head, [0])


def test_a_byte_that_was_changed_is_noticed_wherever_it_is(tmp_path: Path) -> None:
    path, head = written(tmp_path)
    sound = path.read_bytes()
    images = [bytes(image) for image in make_images()]
    start = len(sound) - 3 * head.sealed_bytes
    for position in range(len(sound)):
        changed = bytearray(sound)
        changed[position] ^= 1 << position % 8
        path.write_bytes(changed)
        right = []
        for number in range(3):
            try:
                right += read(path, head, [number])
            except DamagedFile:
                continue
            assert right[-1] == images[number]
        # A block's bytes are its own; the head's are everybody's.
        assert len(right) == (0 if position < start else 2), position


def test_a_file_that_ends_early_is_not_whole(tmp_path: Path) -> None:
    path, head = written(tmp_path)
    sound = path.read_bytes()
    for length in range(len(sound)):
        path.write_bytes(sound[:length])
        with pytest.raises(DamagedFile):
            read_head(path)
        with pytest.raises(DamagedFile):
            read(path, head, [2])
    path.write_bytes(sound + b"\0")
    with pytest.raises(DamagedFile, match="whole"):
        read_head(path)


def test_random_bytes_are_no_file(tmp_path: Path) -> None:
    rng, path = random.Random(5), tmp_path / "any.kept"
    for count in range(200):
        path.write_bytes(b"PWkept1\n"[: rng.randrange(9)] + rng.randbytes(count))
        with pytest.raises(DamagedFile):
            read_head(path)


def test_a_file_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_file(tmp_path / "one.kept", make_head(), KEY, make_images(), TIMES)
    assert not list(tmp_path.iterdir())
