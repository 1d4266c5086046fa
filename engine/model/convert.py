"""A GGUF file, such as the default model's, converted to a Hugging Face folder.

A program of its own, `python -m engine.model.convert GGUF FOLDER`: what it takes (over 500 MiB) is
gone when it ends, where a service would keep it.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import torch
import transformers
from gguf import GGUFReader
from tokenizers import pre_tokenizers

_AS_CONVERTED = {"default", "gpt-2", "qwen2"}
"""Pre-tokenizers that the conversion of `transformers` knows, or falls back to."""


def choose_digits(kind: str, pre_tokenizer: str) -> bool:
    """Whether digits are cut apart first, by what the file says of its tokenizer.

    GGUF names the pre-tokenizer only by a keyword, and the conversion falls back to GPT-2's: exits
    for one that this would replace in silence.
    """
    if kind == "gpt2" and pre_tokenizer == "smollm":
        return True
    if kind == "gpt2" and pre_tokenizer not in _AS_CONVERTED:
        sys.exit(
            f"error: this file's text is cut by {pre_tokenizer!r}, which cannot be made from GGUF: "
            "give the model's Hugging Face folder"
        )
    return False


def _field(reader: GGUFReader, name: str, default: str) -> str:
    field = reader.get_field(name)
    return default if field is None else str(field.contents())


def save_model(gguf: Path, folder: Path) -> None:
    """Write configuration and weights, widened to bfloat16."""
    options = {}
    if hasattr(transformers, "GgufConfig"):
        # Newer releases keep the weights packed unless told otherwise.
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16, **options
    )
    for owner, name in (
        (model, "is_quantized"),
        (model, "hf_quantizer"),
        (model, "quantization_method"),
        (model.config, "quantization_config"),
    ):
        if name in vars(owner):
            delattr(owner, name)
    model.save_pretrained(folder)


def save_tokenizer(gguf: Path, folder: Path, cuts_digits: bool) -> None:
    """Write the tokenizer, which cuts text as the model's own does, and the chat template."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    if cuts_digits:  # which also changes the spaces in front of numbers
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )
    config = transformers.AutoConfig.from_pretrained(folder)
    tokenizer.model_max_length = config.max_position_embeddings
    tokenizer.save_pretrained(folder)


def main() -> None:
    """Entry point; `FOLDER` exists and is empty."""
    # Ctrl-C reaches the whole terminal, and whoever started this says that it was stopped.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    gguf, folder = map(Path, sys.argv[1:])
    transformers.utils.logging.disable_progress_bar()
    reader = GGUFReader(gguf)
    kind = _field(reader, "tokenizer.ggml.model", "gpt2")
    cuts_digits = choose_digits(kind, _field(reader, "tokenizer.ggml.pre", "default"))
    save_model(gguf, folder)
    save_tokenizer(gguf, folder, cuts_digits)


if __name__ == "__main__":
    main()
