"""Models that lie on this machine: converted ones, those of the hub's cache, files and folders."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from app.models.sizes import ModelShape, shape_of, shape_of_file, stored_bytes
from engine.model.weights import DEFAULT_MODEL, GGUF_LINK, default_gguf

_LEADS_TO_WEIGHTS = ("*.safetensors", GGUF_LINK)


@dataclass(frozen=True, slots=True)
class Found:
    """A model at hand."""

    model: str
    """What `--model` is given."""
    source: str
    stored_bytes: int
    shape: ModelShape | None
    """`None` where that is told only once it is served."""


def models_at_hand(cache_dir: Path, folders: Iterable[Path] = ()) -> list[Found]:
    """The default model, and what is in the two caches and right in `folders`, which need not be.

    A GGUF file that was converted stands once, for the file.
    """
    converted = list(_converted(cache_dir))
    found = list(_default(cache_dir))
    found += [Found(str(path), "converted", *_sizes(folder)) for path, folder in converted]
    found += _in_hub_cache()
    known = {path for path, _ in converted}
    for folder in folders:
        found += (one for one in _in_folder(folder) if Path(one.model) not in known)
    return found


def _default(cache_dir: Path) -> Iterator[Found]:
    gguf = default_gguf()
    if gguf is None:
        return
    made = next((one for one in _folders(cache_dir) if one.name.startswith(DEFAULT_MODEL)), None)
    if made is None:
        size, shape = gguf.stat().st_size, shape_of_file(gguf, widens=True)
    else:
        size, shape = _sizes(made)
    yield Found(DEFAULT_MODEL, "wheel", size, shape)


def _converted(cache_dir: Path) -> Iterator[tuple[Path, Path]]:
    """GGUF files that are still there, and the folders made for them."""
    for folder in _folders(cache_dir):
        if (folder / GGUF_LINK).exists():
            yield (folder / GGUF_LINK).resolve(), folder


def _in_hub_cache() -> Iterator[Found]:
    from huggingface_hub.constants import HF_HUB_CACHE

    for repository in sorted(Path(HF_HUB_CACHE).glob("models--*--*")):
        reference = repository / "refs" / "main"
        if reference.is_file():
            snapshot = repository / "snapshots" / reference.read_text().strip()
            if _is_model(snapshot):
                name = repository.name.removeprefix("models--").replace("--", "/")
                yield Found(name, "hub cache", *_sizes(snapshot))


def _in_folder(folder: Path) -> Iterator[Found]:
    if folder.is_file() and folder.suffix == ".gguf":
        yield _file(folder)
        return
    for one in (folder, *_folders(folder)):
        if _is_model(one):
            yield Found(str(one.resolve()), "folder", *_sizes(one))
    for path in sorted(folder.glob("*.gguf")) if folder.is_dir() else ():
        yield _file(path)


def _file(path: Path) -> Found:
    return Found(str(path.resolve()), "file", path.stat().st_size, shape_of_file(path))


def _folders(folder: Path) -> list[Path]:
    """The folders in one that may be read, but for those that are being made."""
    if not (folder.is_dir() and os.access(folder, os.R_OK | os.X_OK)):
        return []
    return sorted(one for one in folder.iterdir() if one.is_dir() and one.name[0] != ".")


def _is_model(folder: Path) -> bool:
    has_weights = any(next(folder.glob(name), None) for name in _LEADS_TO_WEIGHTS)
    return has_weights and (folder / "config.json").is_file()


def _sizes(folder: Path) -> tuple[int, ModelShape | None]:
    return stored_bytes(folder), shape_of(folder)
