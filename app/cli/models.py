"""`partywall models`: what could be served here, and what it takes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.options import CommandError, settings_command
from app.cli.printing import AsJson, print_json, print_table
from app.settings import Settings, load_settings

if TYPE_CHECKING:
    from app.models.inventory import Found
    from app.models.sizes import ModelShape

_GIB = 1 << 30
_GPU_DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Of NVIDIA, of AMD, and of either within Windows."""


@settings_command(["cache_dir", "data_dir", "device"])
def models(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FOLDER...", help="GGUF files and folders to look at as well."),
    ] = None,
    as_json: AsJson = False,
    **given: Any,
) -> None:
    """List the models at hand, and stronger ones that would fit."""
    from app.models.inventory import models_at_hand
    from app.models.sizes import fitting

    settings = load_settings(**given)
    missing = [folder for folder in folders or () if not folder.exists()]
    if missing:
        raise CommandError(f"{missing[0]}: there is no such file or folder")
    available = memory_for_models(settings)
    found = models_at_hand(settings.cache_dir, [settings.data_dir, *(folders or ())])
    at_hand = [_document(one, available) for one in found]
    others = [
        {"model": model.name, "license": model.license, "fits": kind, **_sizes(model.shape)}
        for model, kind in fitting(available)
        if model.name not in {one.model for one in found}
    ]
    if as_json:
        document = {"available_bytes": available, "at_hand": at_hand, "would_fit": others}
        print_json(document)
        return
    print(f"At hand, for {_text(available)} of free memory:")
    print_table([_row(one) for one in at_hand], "nothing")
    print("\nOn the Hugging Face hub, fetched once by its client where there is a connection:")
    print_table([_row(one) for one in others], "nothing more that fits")
    print("\nStart one with 'partywall serve --model MODEL', in 8 or 4 bits with --quantize.")


def memory_for_models(settings: Settings) -> int:
    """Bytes that weights and KV cache may take: of a GPU where one is used, else of this machine
    or what a container may use of it.
    """
    from engine.system.control_groups import available_memory

    if settings.device == "cpu" or not any(map(os.path.exists, _GPU_DRIVERS)):
        return available_memory()
    import torch  # which takes a second, and much memory for as long as a service runs

    return int(torch.cuda.mem_get_info()[0]) if torch.cuda.is_available() else available_memory()


def stronger_models(settings: Settings) -> str:
    """A line for whoever serves the default model: what would answer better, and fits."""
    from app.models.sizes import fitting

    available = memory_for_models(settings)
    first = [
        f"{model.name} ({_text(model.shape.weight_bytes(kind))})"
        for model, kind in fitting(available)
        if kind == "bfloat16"
    ][:4]
    named = f"{', '.join(first)}, " if first else ""
    return f"--model {named}a GGUF file or a folder; 'partywall models' lists what fits"


def _document(found: Found, available: int) -> dict[str, Any]:
    """Where the shape is not known, a model is said to fit by its file alone."""
    from app.models.sizes import best_kind, needed_bytes

    if found.shape is None:
        is_small = needed_bytes(found.stored_bytes, 0) <= available
        fits = "as stored" if is_small else None
    else:
        fits = best_kind(found.shape, available)
    return {
        "model": found.model,
        "source": found.source,
        "fits": fits,
        "stored_bytes": found.stored_bytes,
        **_sizes(found.shape),
    }


def _sizes(shape: ModelShape | None) -> dict[str, int | None]:
    from app.models.sizes import WEIGHT_BITS

    if shape is None:
        names = *map(_bytes_of, WEIGHT_BITS), *map(_active_of, WEIGHT_BITS)
        return dict.fromkeys(("parameters", *names, "kv_token_bytes"))
    return {
        "parameters": shape.parameters,
        **{_bytes_of(kind): shape.weight_bytes(kind) for kind in WEIGHT_BITS},
        **{_active_of(kind): shape.active_bytes(kind) for kind in WEIGHT_BITS},
        "kv_token_bytes": shape.kv_token_bytes,
    }


def _bytes_of(kind: str) -> str:
    return f"{kind}_bytes"


def _active_of(kind: str) -> str:
    """What a token reads of them."""
    return f"{kind}_active_bytes"


def _row(document: dict[str, Any]) -> dict[str, object]:
    """The same for people, who are told what a token reads with the weights that fit."""
    from app.models.sizes import WEIGHT_BITS

    kind = document["fits"] if document["fits"] in WEIGHT_BITS else "bfloat16"
    row = {
        name.removesuffix("_bytes"): _text(value) if name.endswith("_bytes") else value
        for name, value in document.items()
        if name != "parameters" and not name.endswith("_active_bytes")
    }
    return {**row, "active": _text(document[_active_of(kind)])}


def _text(size: int | None) -> str | None:
    if size is None:
        return None
    if size >= _GIB // 10:
        return f"{size / _GIB:.1f} GiB"
    return f"{size >> 20} MiB" if size >> 20 else f"{size >> 10} KiB"
