"""What computes KV, and how it is kept, in a few bytes: weights by their contents.

All of a file is read, in the threads that hashing leaves to run side by side. What was found is
kept in the cache folder beside what the system says of the file, and read again only when that has
changed.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from mmap import ACCESS_READ, mmap
from pathlib import Path

import msgspec
import torch

from engine.config import EngineConfig
from engine.system import cache_files

_DIGEST_BYTES = 16
_PART_BYTES = 16 << 20
_KEPT = "weights.json"
_decode = msgspec.json.Decoder(dict[str, tuple[str, str]]).decode


def model_fingerprint(config: EngineConfig, dtype: torch.dtype, rounding: str = "") -> bytes:
    """Identifies what computes KV, and how it is kept: part of every block hash.

    The weights count by configuration, file names and contents. Whose last bits matter says what
    they hang on, as `rounding`: nothing is then found that was computed in another way.
    """
    kept = f"{dtype} {config.quantize} {config.kv_dtype}{rounding and f' {rounding}'}"
    if config.tensor_parallel > 1:  # sums are rounded otherwise, and steps take another time
        kept += f" {config.tensor_parallel}"
    digest = blake2b(kept.encode(), digest_size=_DIGEST_BYTES)
    folder = Path(config.model_path)
    digest.update((folder / "config.json").read_bytes())
    known = _Known(None if config.cache_dir is None else Path(config.cache_dir) / _KEPT)
    for file in weight_files(folder):
        digest.update(f"{file.name}:{known.digest_of(file)}".encode())
    known.save()
    return digest.digest()


def weight_files(folder: Path) -> list[Path]:
    """Those by which the weights in a model's folder are known."""
    return sorted((*folder.glob("*.safetensors"), *folder.glob("*.gguf")))


class _Known:
    """Digests of files, by what the system says of them: a file that was replaced or written to
    differs in that, even if its size and its time of modification were put back.
    """

    def __init__(self, store: Path | None) -> None:
        self._store = store
        self._entries = cache_files.load(store, _decode) or {}
        self._is_changed = False

    def digest_of(self, file: Path) -> str:
        path, stat = str(file.resolve()), file.stat()
        state = f"{stat.st_dev} {stat.st_ino} {stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns}"
        entry = self._entries.get(path)
        if entry is None or entry[0] != state:
            entry = self._entries[path] = (state, _digest(file, stat.st_size))
            self._is_changed = True
        return entry[1]

    def save(self) -> None:
        if self._is_changed:
            cache_files.save(self._store, self._entries)


def _digest(file: Path, size: int) -> str:
    """The hash of the hashes of a file's parts."""
    whole = blake2b(digest_size=_DIGEST_BYTES)
    if size:
        with file.open("rb") as opened, mmap(opened.fileno(), 0, access=ACCESS_READ) as contents:
            view = memoryview(contents)

            def part(start: int) -> bytes:
                with view[start : start + _PART_BYTES] as window:
                    return blake2b(window, digest_size=_DIGEST_BYTES).digest()

            with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
                for digest in pool.map(part, range(0, size, _PART_BYTES)):
                    whole.update(digest)
            view.release()
    return whole.hexdigest()
