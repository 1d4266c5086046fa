"""A GGUF file made a Hugging Face folder: configuration, tokenizer, and where each weight is.

A program of its own, `python -m engine.model.convert GGUF FOLDER`: what it takes is gone when it
ends, where a service would keep it. Weights stay in the file, for architectures whose layout there
is known. Others, and with `--widen` all (the default model), are written in bfloat16, which takes
over 500 MiB.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import msgspec
import torch
import transformers
from accelerate import init_empty_weights
from gguf import MODEL_ARCH_NAMES, GGUFReader, ReaderTensor, TensorNameMap, get_tensor_name_map
from tokenizers import pre_tokenizers

from engine.model.checkpoints.gguf import StoredTensor
from engine.model.weights import GGUF_INDEX, GGUF_LINK

_AS_CONVERTED = {"default", "gpt-2", "qwen2"}
"""Pre-tokenizers that the conversion of `transformers` knows, or falls back to."""

_ARCHITECTURES = {"llama", "qwen2", "qwen3", "gemma2", "gemma3"}
"""Whose tensors are those of the `transformers` model but for what `_stored` says."""


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


def save_index(gguf: Path, reader: GGUFReader, folder: Path) -> None:
    """Write configuration, a link to the file, and where in it the model's parameters are."""
    config = transformers.AutoConfig.from_pretrained(gguf.parent, gguf_file=gguf.name)
    config.dtype = torch.bfloat16
    vars(config).pop("quantization_config", None)
    with init_empty_weights():
        model = transformers.AutoModelForCausalLM.from_config(config)
    model.tie_weights()
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    index = _index(reader, model)
    (folder / GGUF_INDEX).write_bytes(msgspec.json.format(msgspec.json.encode(index)))
    (folder / GGUF_LINK).symlink_to(gguf.resolve())


def _index(reader: GGUFReader, model: transformers.PreTrainedModel) -> dict[str, StoredTensor]:
    architecture = _field(reader, "general.architecture", "")
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    if "rope_freqs.weight" in tensors:
        sys.exit(
            "error: this file scales rotary positions by factors of its own: "
            "give the model's Hugging Face folder"
        )
    names = _name_map(architecture, model.config.num_hidden_layers)
    index = {}
    for name, _ in model.named_parameters():
        stored = tensors.get(names.get_name(name, try_suffixes=(".weight", ".bias")))
        if stored is None:
            sys.exit(f"error: this file has no {name}")
        index[name] = _stored(architecture, model.config, name, stored)
    return index


def _name_map(architecture: str, num_layers: int) -> TensorNameMap:
    (arch,) = (arch for arch, name in MODEL_ARCH_NAMES.items() if name == architecture)
    return get_tensor_name_map(arch, num_layers)


def _stored(
    architecture: str, config: transformers.PretrainedConfig, name: str, tensor: ReaderTensor
) -> StoredTensor:
    """What llama.cpp changed when it wrote the file: rows of Llama's queries and keys, and norms of
    Gemma, which count from 1.
    """
    heads = 0
    if architecture == "llama" and ".q_proj." in name:
        heads = config.num_attention_heads
    if architecture == "llama" and ".k_proj." in name:
        heads = config.num_key_value_heads
    return StoredTensor(
        kind=tensor.tensor_type.name,
        shape=[int(size) for size in reversed(tensor.shape)],
        start=int(tensor.data_offset),
        num_bytes=int(tensor.n_bytes),
        rotated_heads=heads,
        excess=1.0 if architecture.startswith("gemma") and name.endswith("norm.weight") else 0.0,
    )


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
    """Entry point, of `GGUF FOLDER [--widen]`; `FOLDER` exists and is empty."""
    # Ctrl-C reaches the whole terminal, and whoever started this says that it was stopped.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    gguf, folder = map(Path, sys.argv[1:3])
    transformers.utils.logging.disable_progress_bar()
    reader = GGUFReader(gguf)
    kind = _field(reader, "tokenizer.ggml.model", "gpt2")
    cuts_digits = choose_digits(kind, _field(reader, "tokenizer.ggml.pre", "default"))
    known = _field(reader, "general.architecture", "") in _ARCHITECTURES
    if known and "--widen" not in sys.argv[3:]:
        save_index(gguf, reader, folder)
    else:
        save_model(gguf, folder)
    save_tokenizer(gguf, folder, cuts_digits)


if __name__ == "__main__":
    main()
