"""Adapters of tiny models as PEFT makes them, and what the changed models say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import PreTrainedModel

from engine.api import AdapterUse
from engine.serve.core import EngineCore
from tests.engine.simulated_model import EOS

PIECE_BYTES = 5000
_TARGETS = r".*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj|in_proj\w*|out_proj)"


@dataclass(frozen=True)
class Made:
    """An adapter, in PEFT's two files."""

    name: bytes
    folder: Path
    invocation: tuple[int, ...] = ()

    def use(self, prompt: list[int]) -> AdapterUse:
        """By a prompt, in which it may be invoked."""
        size = len(self.invocation)
        places = [
            at
            for at in range(len(prompt))
            if size and tuple(prompt[at : at + size]) == self.invocation
        ]
        return AdapterUse(self.name, places[-1] if places else 0)

    @contextmanager
    def changing(self, model: PreTrainedModel) -> Iterator[Any]:
        """The model that PEFT makes of it."""
        changed = PeftModel.from_pretrained(model, str(self.folder))
        try:
            yield changed
        finally:
            changed.unload()

    def says(self, model: PreTrainedModel, prompt: list[int], max_tokens: int) -> list[int]:
        """What the changed model goes on with, greedily, as `transformers` has it."""
        with self.changing(model) as changed, torch.inference_mode():
            found = changed.generate(
                input_ids=torch.tensor([prompt]),
                max_new_tokens=max_tokens,
                do_sample=False,
                eos_token_id=EOS,
                pad_token_id=0,
            )
        said: list[int] = found[0, len(prompt) :].tolist()
        return said

    def bring(self, core: EngineCore) -> None:
        """As a service does that has been asked for it."""
        config = (self.folder / "adapter_config.json").read_bytes()
        core.bring(self.name, config, is_first=True)
        data = (self.folder / "adapter_model.safetensors").read_bytes()
        for start in range(0, len(data), PIECE_BYTES):
            core.bring(self.name, data[start : start + PIECE_BYTES])
        core.bring(self.name, b"", is_last=True)


def make_adapter(
    model: PreTrainedModel,
    folder: Path,
    seed: int = 0,
    invocation: tuple[int, ...] = (),
    **options: Any,
) -> Made:
    """A random one of all linear layers, unless `options` of `LoraConfig` say otherwise."""
    torch.manual_seed(seed)
    invoked = {"alora_invocation_tokens": list(invocation)} if invocation else {}
    config = LoraConfig(
        task_type="CAUSAL_LM",
        init_lora_weights=False,
        **{"r": 4, "lora_alpha": 16, "target_modules": _TARGETS} | invoked | options,
    )
    changed = get_peft_model(model, config)
    changed.save_pretrained(str(folder))
    changed.unload()
    return Made(seed.to_bytes(2, "little") * 16, folder, invocation)
