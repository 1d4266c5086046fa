"""A GGUF file made a Hugging Face folder: configuration, tokenizer, and where each weight is.

A program of its own, `python -m engine.model.convert GGUF FOLDER`: what it takes is gone when it
ends, where a service would keep it. Weights stay in the file, for architectures whose layout there
is known. Others, and with `--widen` all (the default model), are written in bfloat16, which takes
over 500 MiB.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from itertools import pairwise
from operator import attrgetter
from pathlib import Path

import msgspec
import torch
import transformers
from accelerate import init_empty_weights
from gguf import MODEL_ARCH_NAMES, GGUFReader, ReaderTensor, TensorNameMap, get_tensor_name_map
from tokenizers import pre_tokenizers
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

from engine.model.checkpoints.gguf import StoredTensor
from engine.model.weights import GGUF_ARCHITECTURES, GGUF_INDEX, GGUF_LINK

_AS_CONVERTED = {"default", "gpt-2", *GGUF_PRE_TOKENIZER_SPLITS}
"""Pre-tokenizers that the conversion of `transformers` knows, or falls back to."""

_WHOLE_WORDS = {"llama3", "llama-v3", "llama-bpe", "tekken"}
"""Of which what is a token as it stands is not put together from its parts."""


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


def open_whole(gguf: Path) -> GGUFReader:
    """A file's reader. Exits for one that is cut off, or has two tensors in one place."""
    try:
        reader = GGUFReader(gguf)
    except (ValueError, IndexError, KeyError, OverflowError) as error:
        sys.exit(f"error: this is no whole GGUF file ({error})")
    for one, after in pairwise(sorted(reader.tensors, key=attrgetter("data_offset"))):
        if one.data_offset + one.n_bytes > after.data_offset:
            sys.exit(f"error: this file has {one.name} and {after.name} in one place")
    return reader


def _require_layers(reader: GGUFReader) -> None:
    """Exit for a file of more or fewer layers than it says, before a model is made of them."""
    said = _field(reader, f"{_field(reader, 'general.architecture', '')}.block_count", "none")
    parts = (tensor.name.split(".") for tensor in reader.tensors)
    found = len({name[1] for name in parts if name[0] == "blk"})
    if said != str(found):
        sys.exit(f"error: this file says that it has {said} layers, and has {found}")


def save_index(gguf: Path, reader: GGUFReader, folder: Path) -> None:
    """Write configuration, a link to the file, and where in it the model's parameters are."""
    _require_layers(reader)
    config = _config(gguf, reader)
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


def _config(gguf: Path, reader: GGUFReader) -> transformers.PretrainedConfig:
    """What the conversion of `transformers` makes of the file, and what it leaves out."""
    config: transformers.PretrainedConfig
    config = transformers.AutoConfig.from_pretrained(gguf.parent, gguf_file=gguf.name)
    architecture = _field(reader, "general.architecture", "")
    if architecture == "llama" and reader.get_field("llama.expert_count") is not None:
        config = _mixtral(reader, config)
    length = reader.get_field(f"{architecture}.attention.key_length")
    if length is not None:
        config.head_dim = int(length.contents())
    inner = reader.get_field(f"{architecture}.expert_feed_forward_length")
    if inner is not None and hasattr(config, "moe_intermediate_size"):
        config.moe_intermediate_size = int(inner.contents())
    shared = reader.get_field(f"{architecture}.expert_shared_feed_forward_length")
    if shared is not None and hasattr(config, "shared_expert_intermediate_size"):
        config.shared_expert_intermediate_size = int(shared.contents())
    if architecture == "qwen3moe":
        config.norm_topk_prob = True  # which no file says
    _scale_positions(reader, config)
    return config


def _mixtral(
    reader: GGUFReader, config: transformers.PretrainedConfig
) -> transformers.PretrainedConfig:
    """Mixtral is Llama there, with experts."""
    options = {**config.to_dict(), "sliding_window": None}
    for name, field in (("num_local_experts", "count"), ("num_experts_per_tok", "used_count")):
        options[name] = int(_field(reader, f"llama.expert_{field}", "0"))
    del options["model_type"]
    return transformers.MixtralConfig(**options)


def _scale_positions(reader: GGUFReader, config: transformers.PretrainedConfig) -> None:
    """Turn by the frequencies that the file divides by factors of its own (Llama 3.1 and later)."""
    factors = next((found for found in reader.tensors if found.name == "rope_freqs.weight"), None)
    if factors is None:
        return
    each = [float(factor) for factor in factors.data]
    config.rope_parameters = {
        "rope_type": "longrope",  # whose factors are the same in contexts of any length
        "rope_theta": config.rope_parameters["rope_theta"],
        "short_factor": each,
        "long_factor": each,
        "attention_factor": 1.0,
        "original_max_position_embeddings": config.max_position_embeddings,
    }


def _index(reader: GGUFReader, model: transformers.PreTrainedModel) -> dict[str, StoredTensor]:
    architecture = _field(reader, "general.architecture", "")
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    names = _name_map(architecture, model.config.num_hidden_layers)
    index = {}
    for name in _stored_names(model):
        place = names.get_name(name, try_suffixes=(".weight", ".bias"))
        stored = tensors.get(place) or tensors.get(f"{place}.weight")  # sinks are no module's
        if stored is None:
            sys.exit(f"error: this file has no {name}")
        index[name] = _stored(architecture, model.config, name, stored)
    return index


def _stored_names(model: transformers.PreTrainedModel) -> Iterator[str]:
    """The model's parameters, but for experts each product by itself, as a file has them."""
    for name, _ in model.named_parameters():
        owner, _, kind = name.rpartition(".")
        if not owner.endswith(".experts"):
            yield name
            continue
        kind, ending = (kind.removesuffix("_bias"), "bias" if kind.endswith("_bias") else "weight")
        for part in ("gate_proj", "up_proj") if kind == "gate_up_proj" else (kind,):
            yield f"{owner}.{part}.{ending}"


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
    """Write configuration and weights, widened to bfloat16. Exits for a file that lacks some, which
    the loader of `transformers` would draw at random.
    """
    options = {}
    if hasattr(transformers, "GgufConfig"):
        # Newer releases keep the weights packed unless told otherwise.
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    model, told = transformers.AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.bfloat16,
        output_loading_info=True,
        **options,
    )
    if told["missing_keys"]:
        sys.exit(f"error: this file has no {min(told['missing_keys'])}")
    for owner, name in (
        (model, "is_quantized"),
        (model, "hf_quantizer"),
        (model, "quantization_method"),
        (model.config, "quantization_config"),
    ):
        if name in vars(owner):
            delattr(owner, name)
    model.save_pretrained(folder)


def save_tokenizer(gguf: Path, folder: Path, kind: str, pre_tokenizer: str) -> None:
    """Write the tokenizer, which cuts text as the model's own does, and the chat template.

    For `kind` and `pre_tokenizer` see `choose_digits`.
    """
    cuts_digits = choose_digits(kind, pre_tokenizer)
    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    if pre_tokenizer in _WHOLE_WORDS:
        tokenizer.backend_tokenizer.model.ignore_merges = True
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
    reader = open_whole(gguf)
    kind = _field(reader, "tokenizer.ggml.model", "gpt2")
    pre_tokenizer = _field(reader, "tokenizer.ggml.pre", "default")
    choose_digits(kind, pre_tokenizer)  # exits before anything is written
    known = _field(reader, "general.architecture", "") in GGUF_ARCHITECTURES
    if known and "--widen" not in sys.argv[3:]:
        save_index(gguf, reader, folder)
    else:
        save_model(gguf, folder)
    save_tokenizer(gguf, folder, kind, pre_tokenizer)


if __name__ == "__main__":
    main()
