"""A folder of gpt-oss as it is published, of a tiny model that knows a handful of conversations.

Its experts are random codes, and stay so; all around them learns, within seconds, to say in each
conversation what it has said there, byte for byte.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from tests.engine.model.checkpoints.test_folder_experts import random_mxfp4

Example = tuple[str, str]
"""A prompt as the template writes it, and the answer to it."""

CONTROLS: Final = (
    "<|startoftext|>", "<|endoftext|>", "<|return|>", "<|constrain|>", "<|channel|>", "<|start|>",
    "<|end|>", "<|message|>", "<|call|>",
)  # fmt: skip
VOCABULARY: Final = 1024
"""Rows of the embedding: more than there are tokens, as published."""
TEMPLATE: Final = Path(__file__).with_name("harmony.jinja")
_MERGED: Final = 700
"""Tokens of bytes and merges."""
_WORDS: Final = r"\p{N}{1,3}| ?\p{L}+| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+"
_TYPES: Final = ["sliding_attention", "full_attention"]
CONFIG: Final[dict[str, Any]] = {
    "architectures": ["GptOssForCausalLM"],
    "attention_bias": True,
    "attention_dropout": 0.0,
    "experts_per_token": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "hidden_size": 128,
    "initial_context_length": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 64,
    "layer_types": _TYPES,
    "max_position_embeddings": 131072,
    "model_type": "gpt_oss",
    "num_attention_heads": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "num_local_experts": 4,
    "output_router_logits": False,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 150000,
    "router_aux_loss_coef": 0.9,
    "sliding_window": 48,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
    "use_cache": True,
    "vocab_size": VOCABULARY,
}
_QUANTIZATION: Final = {
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
    "quant_method": "mxfp4",
}
_STEPS: Final = 400
_UNSAID: Final = -1
_FEW: Final = 0.05
"""Nats for the least likely token: what is said is near certain then, in bfloat16 too."""


def harmony_tokenizer(texts: Sequence[str]) -> PreTrainedTokenizerFast:
    """A byte-level BPE with a few merges of these texts, and harmony's control tokens behind."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        [one for text in texts for one in _without_controls(text)],
        trainers.BpeTrainer(vocab_size=_MERGED, initial_alphabet=alphabet, show_progress=False),
    )
    backend.add_special_tokens([AddedToken(one, special=True) for one in CONTROLS])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<|startoftext|>",
        eos_token="<|return|>",
        pad_token="<|endoftext|>",
    )
    tokenizer.chat_template = TEMPLATE.read_text()
    return tokenizer


def write_folder(
    folder: Path, tokenizer: PreTrainedTokenizerFast, examples: Sequence[Example]
) -> None:
    """The folder of a model that answers these prompts so."""
    tokenizer.save_pretrained(folder)
    begin, pad, end, call = (
        int(tokenizer.convert_tokens_to_ids(one))
        for one in ("<|startoftext|>", "<|endoftext|>", "<|return|>", "<|call|>")
    )
    config = CONFIG | {"eos_token_id": end, "pad_token_id": pad}
    model, codes = _with_random_experts(config)
    _learn(model, [_spelled(tokenizer, one) for one in examples], pad)
    stored = {
        name: values.bfloat16()
        for name, values in model.state_dict().items()
        if f"{name}_blocks" not in codes
    }
    save_file(stored | codes, folder / "model.safetensors", metadata={"format": "pt"})
    generation = {
        "bos_token_id": begin,
        "do_sample": True,
        "eos_token_id": [end, pad, call],
        "pad_token_id": pad,
    }
    _write(folder / "config.json", config | {"quantization_config": _QUANTIZATION})
    _write(folder / "generation_config.json", generation)


def _without_controls(text: str) -> list[str]:
    for one in CONTROLS:
        text = text.replace(one, "\0")
    return text.split("\0")


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2))


def _spelled(tokenizer: PreTrainedTokenizerFast, example: Example) -> tuple[list[int], list[int]]:
    prompt, answer = (tokenizer.encode(text, add_special_tokens=False) for text in example)
    return prompt, answer


def _with_random_experts(config: dict[str, Any]) -> tuple[PreTrainedModel, dict[str, Tensor]]:
    """A model to be trained around its experts, and the codes of these."""
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(**config), dtype=torch.float32, attn_implementation="eager"
    )
    codes = {}
    for name, values in model.named_parameters():
        if values.dim() == 3 and ".experts." in name:
            stored, matrices = random_mxfp4(values.shape, len(codes))
            values.data.copy_(matrices)
            values.requires_grad_(False)
            codes |= {f"{name}_{part}": tensor for part, tensor in stored.items()}
    return model, codes


def _learn(
    model: PreTrainedModel, examples: Sequence[tuple[list[int], list[int]]], pad: int
) -> None:
    """Say each answer behind its prompt, with next to no doubt."""
    longest = max(len(prompt) + len(answer) for prompt, answer in examples)
    ids = torch.full((len(examples), longest), pad)
    labels = torch.full_like(ids, _UNSAID)
    for row, (prompt, answer) in enumerate(examples):
        end = len(prompt) + len(answer)
        ids[row, :end] = torch.tensor(prompt + answer)
        labels[row, len(prompt) : end] = torch.tensor(answer)
    learning = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(learning, lr=5e-3, betas=(0.9, 0.95), weight_decay=0.0)
    said = labels[:, 1:] != _UNSAID
    for _ in range(_STEPS):
        states = model.base_model(ids, use_cache=False).last_hidden_state[:, :-1]
        logits = model.get_output_embeddings()(states[said])
        losses = functional.cross_entropy(logits, labels[:, 1:][said], reduction="none")
        if losses.max().item() < _FEW:
            return
        optimizer.zero_grad()
        losses.mean().backward()
        torch.nn.utils.clip_grad_norm_(learning, 1.0)  # else it takes thrice as many steps
        optimizer.step()
    raise AssertionError(f"{losses.max().item()} nats for a token after {_STEPS} steps")
