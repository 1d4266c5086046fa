"""The weights: whether they are here, and whether what is here can be read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from app.assembly.check import Check
from app.settings import Settings, option_name
from engine.model.weights import DEFAULT_MODEL, ModelUnavailable, find_model


def check_models(settings: Settings) -> Iterator[Check]:
    """Of the model, and of the draft model if there is to be one; nothing is fetched."""
    yield _model("weights", "model", settings.model)
    if settings.draft_model is not None:
        yield _model("draft weights", "draft_model", settings.draft_model)


def _model(part: str, field: str, model: str) -> Check:
    remedy = f"fetch its files again, or choose another {option_name(field)}; 'partywall models' "
    remedy += "lists what is here"
    try:
        found = find_model(model)
    except ModelUnavailable as error:
        return Check(part, "fail", str(error), "" if model == DEFAULT_MODEL else remedy)
    if found is None:
        return Check(
            part,
            "warn",
            f"{model} is not on this machine: the start will fetch it from the model hub",
            f"see that the hub can be reached, or fetch it before, by 'hf download {model}'",
        )
    problem = _problem(found)
    if problem:
        return Check(part, "fail", f"{model}: {problem}", remedy)
    return Check(part, "ok", f"{model} is in {found}")


def _problem(found: Path) -> str:
    """Why a file, or a folder, cannot be read as a model; empty where it can."""
    files = [found] if found.is_file() else [*found.glob("*.safetensors"), *found.glob("*.bin")]
    if not files:
        return f"there are no weights (*.safetensors) in {found}"
    for file in files:
        if not os.access(file, os.R_OK):
            return f"user {os.geteuid()} may not read {file}"
        if file.suffix == ".safetensors" and (reason := _safetensors_problem(file)):
            return f"{file.name} cannot be read: {reason}"
        if file.suffix == ".gguf" and not _is_gguf(file):
            return "this is no GGUF file"
    return ""


def _safetensors_problem(file: Path) -> str:
    """The format's own library reads the head, and compares it with the size of the file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt"):
            return ""
    except (SafetensorError, OSError) as error:
        return str(error)


def _is_gguf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"GGUF"
