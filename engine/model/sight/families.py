"""Which families see, and what in them is a text model like those without eyes.

The text part of each computes what a causal language model of its own class does, so that is what
is served: fused, paged, checked and changed by adapters like any other. What is left of the model
is its tower, with whatever leads from that to the text model's embeddings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from engine.batch.pictures import Mutuality
from engine.model.sight.tower import Tower

Turning = Literal["sections", "turns"]
"""How the frequencies of a head are shared out among time, height and width: one behind the other,
or by turns."""


@dataclass(frozen=True, slots=True)
class SightedFamily:
    """How a family has its text model."""

    text: str = "language_model"
    """What it is called."""
    causal: str | None = None
    """The class of causal language models that computes the same, where the family has a text model
    of its own; but for how it turns what is seen."""
    turning: Turning | None = None
    """If its positions have three parts."""
    mutual: Callable[[Any], Mutuality | None] = lambda _: None
    """How tokens of a picture see each other, by the model's configuration."""
    tiles: int | None = None
    """The dimension of its inputs in which a picture's parts are that its tower sees one by one, if
    it has such."""


def _gemma4(config: Any) -> Mutuality | None:
    if config.text_config.use_bidirectional_attention != "vision":
        return None
    return Mutuality(config.vision_soft_tokens_per_image, in_windows=True)


_SECTIONS = SightedFamily(causal="Qwen2ForCausalLM", turning="sections")
SIGHTED: Final = {
    "gemma3": SightedFamily(mutual=lambda config: Mutuality(config.mm_tokens_per_image)),
    "gemma4": SightedFamily(mutual=_gemma4),
    "idefics3": SightedFamily(text="text_model", tiles=1),
    "internvl": SightedFamily(tiles=0),
    "llava": SightedFamily(),
    "llava_onevision": SightedFamily(),
    "mistral3": SightedFamily(),
    "qwen2_vl": _SECTIONS,
    "qwen2_5_vl": _SECTIONS,
    "qwen3_5": SightedFamily(turning="turns"),
    "qwen3_5_moe": SightedFamily(turning="turns"),
    "qwen3_vl": SightedFamily(causal="Qwen3ForCausalLM", turning="turns"),
    "smolvlm": SightedFamily(text="text_model", tiles=1),
}
"""By the types of their configurations. Of others that see, the text is served at most."""


_UNHEARD: Final = {"audio_tower", "embed_audio"}
"""What hears, of models that do."""


def split(model: PreTrainedModel) -> tuple[PreTrainedModel, Tower]:
    """The text model in `model`, of a family that sees, and its tower; `model` is taken apart."""
    family = SIGHTED[model.config.model_type]
    whole: Any = model
    inner, config = whole.model, model.config
    text = getattr(inner, family.text)
    causal = _causal(config.get_text_config(), text, family)
    causal.lm_head = whole.lm_head
    causal.generation_config = model.generation_config
    delattr(inner, family.text)
    for name in _UNHEARD.intersection(dict(inner.named_children())):
        setattr(inner, name, None)
    axes = None if family.turning is None else _axes(config.get_text_config(), family.turning)
    token_id: int = getattr(config, "image_token_id")  # noqa: B009 - of some an alias
    mutual = family.mutual(config)
    return causal.eval(), Tower(inner.eval(), token_id, axes, family.tiles, mutual)


def _causal(config: PreTrainedConfig, text: Any, family: SightedFamily) -> Any:
    """A causal language model over the weights of `text`, without a head."""
    if family.causal is None:
        with torch.device("meta"):
            causal = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)](config)
        causal.model = text
        return causal
    kind: Any = getattr(transformers, family.causal)
    own = {name: value for name, value in config.to_dict().items() if name != "model_type"}
    with torch.device("meta"):
        causal = kind(kind.config_class(**own))
    causal.model.load_state_dict(text.state_dict(), assign=True)
    causal.model.rotary_emb = type(causal.model.rotary_emb)(causal.config)
    return causal


def _axes(config: PreTrainedConfig, turning: Turning) -> Tensor:
    """By which of time, height and width each frequency turns: [head_dim / 2] int64."""
    sections = (config.rope_parameters or {})["mrope_section"]
    if turning == "sections":
        return torch.arange(3).repeat_interleave(torch.tensor(sections))
    axes = torch.zeros(sum(sections), dtype=torch.int64)
    for axis in (1, 2):
        axes[axis : 3 * sections[axis] : 3] = axis
    return axes
