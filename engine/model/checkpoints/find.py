"""Whether a model's folder holds quantized weights, and who reads them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import PretrainedConfig

from engine.model.checkpoints.awq import AwqCheckpoint
from engine.model.checkpoints.checkpoint import Checkpoint, Options, unsupported
from engine.model.checkpoints.compressed_tensors import CompressedCheckpoint
from engine.model.checkpoints.gguf import GgufCheckpoint
from engine.model.checkpoints.gptq import GptqCheckpoint
from engine.model.weights import GGUF_INDEX

_READERS: dict[str, Callable[[Path, Options], Checkpoint]] = {
    "gptq": GptqCheckpoint,
    "awq": AwqCheckpoint,
    "compressed-tensors": CompressedCheckpoint,
}


def find_checkpoint(folder: Path, config: PretrainedConfig) -> Checkpoint | None:
    """The reader of a folder's quantized weights; `None` if they are plain.

    It takes from `config` what `transformers` would load them by. Raises `UnsupportedModel` for
    weights in a form that is not read here, which layers of torch would multiply slowly.
    """
    if (folder / GGUF_INDEX).is_file():
        return GgufCheckpoint(folder)
    for part in (config, config.get_text_config()):
        found: Any = getattr(part, "quantization_config", None)
        if found is not None:
            options: dict[str, Any] = found if isinstance(found, dict) else found.to_dict()
            del part.quantization_config
            method = getattr(options.get("quant_method"), "value", options.get("quant_method"))
            if method not in _READERS:
                raise unsupported(
                    str(method), f"only {', '.join(_READERS)} and GGUF files are read"
                )
            return _READERS[method](folder, options)
    return None
