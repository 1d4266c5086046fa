"""The default model's GGUF file, converted to a Hugging Face folder.

A program of its own, `python -m engine.model.convert GGUF FOLDER`: what it takes (over 500 MiB) is
gone when it ends, where a service would keep it.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import torch
import transformers
from tokenizers import pre_tokenizers

_CONTEXT_TOKENS = 8192


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


def save_tokenizer(gguf: Path, folder: Path) -> None:
    """Write the tokenizer, which cuts text as the model's own does, and the chat template."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # GGUF names the pre-tokenizer only by a keyword, and the conversion falls back to GPT-2's.
    # SmolLM cuts every digit apart first, which also changes the spaces in front of numbers.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.model_max_length = _CONTEXT_TOKENS
    tokenizer.save_pretrained(folder)


def main() -> None:
    """Entry point; `FOLDER` exists and is empty."""
    # Ctrl-C reaches the whole terminal, and whoever started this says that it was stopped.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    gguf, folder = map(Path, sys.argv[1:])
    transformers.utils.logging.disable_progress_bar()
    save_model(gguf, folder)
    save_tokenizer(gguf, folder)


if __name__ == "__main__":
    main()
