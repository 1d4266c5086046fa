"""What a model's own processor makes of a picture: its inputs, and the tokens in its place."""

from __future__ import annotations

import importlib
import json
import sys
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image

from app.pictures.picture import Look
from engine.api import PictureHeader, PictureInput

Array = np.ndarray[Any, Any]

_INPUTS: Final = (
    *("pixel_values", "pixel_attention_mask", "image_grid_thw", "image_sizes"),
    "image_position_ids",
)
"""What towers are given, of all that processors make."""
_MASKS: Final = ("pixel_attention_mask",)
_DIGEST_BYTES: Final = 32


class Processor:
    """That of a model folder, of which only what sees still pictures is used."""

    def __init__(self, folder: Path) -> None:
        """Raises whatever `transformers` does where the folder has none."""
        from transformers import AutoConfig, AutoImageProcessor, AutoTokenizer

        kind = _kind_of(AutoConfig.from_pretrained(folder).model_type)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        image_processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
        parts = {"image_processor": image_processor, "tokenizer": tokenizer}
        for other in {"video_processor", "feature_extractor"}.intersection(kind.get_attributes()):
            parts[other] = None
        if getattr(image_processor, "do_pan_and_scan", None):
            image_processor.do_pan_and_scan = False  # it writes words around its crops
        self._processor: Any = kind(**parts, **_options(folder))
        self._tokenizer: Any = tokenizer

    def look(self, image: Image.Image) -> tuple[Look, dict[str, Array]]:
        """What is known of an RGB picture, and the inputs that the model is given."""
        placeholder = self._processor.image_token
        made = self._processor(
            images=[image], text=[placeholder], return_tensors="np", add_special_tokens=False
        )
        inputs = {name: _input(name, made[name]) for name in _INPUTS if name in made}
        look = Look(
            token_ids=tuple(self._own_tokens(np.asarray(made["input_ids"][0]).tolist())),
            digest=digest_of(inputs),
            width=image.width,
            height=image.height,
            num_input_bytes=sum(array.nbytes for array in inputs.values()),
        )
        return look, inputs

    def _own_tokens(self, token_ids: list[int]) -> list[int]:
        """Without what sets Gemma 3's pictures apart: see `app.prompt.picture_style`."""
        if not hasattr(self._processor, "full_image_sequence"):
            return token_ids
        end = len(token_ids) - token_ids[::-1].index(self._tokenizer.eoi_token_id)
        return token_ids[token_ids.index(self._tokenizer.boi_token_id) : end]


def header_of(inputs: dict[str, Array]) -> PictureHeader:
    """What they are brought with."""
    return PictureHeader(
        tuple(PictureInput(name, str(one.dtype), one.shape) for name, one in inputs.items())
    )


def digest_of(inputs: dict[str, Array]) -> bytes:
    """Of all that they hold."""
    digest = blake2b(digest_size=_DIGEST_BYTES)
    for name, array in inputs.items():
        digest.update(repr((name, str(array.dtype), array.shape)).encode())
        digest.update(array.data)
    return digest.digest()


def _kind_of(model_type: str) -> type[Any]:
    """The class of a model's processor, made without what sees videos, as that needs libraries
    which are not there. So `transformers` itself would name some of them as not there.
    """
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

    said = PROCESSOR_MAPPING_NAMES[model_type]
    name = said if isinstance(said, str) else said[1]
    homes = [home for home, kind in PROCESSOR_MAPPING_NAMES.items() if kind == said]
    family = name.removesuffix("Processor").lower()
    home = min(homes, key=lambda home: home.replace("_", "") != family)
    package = f"transformers.models.{home}"
    if home == "pixtral":  # it takes a function from there that is in the other one, too
        pillows = importlib.import_module(f"{package}.image_processing_pil_{home}")
        sys.modules.setdefault(f"{package}.image_processing_{home}", pillows)
    module: Any = importlib.import_module(f"{package}.processing_{home}")
    kind: Any = getattr(module, name)
    if getattr(module, "num2words", "") is None:
        module.num2words = str  # it spells the lengths of videos

    def any_class(*_: Any) -> type[object]:
        return object

    return type(kind.__name__, (kind,), {"check_argument_for_proper_class": any_class})


def _options(folder: Path) -> dict[str, Any]:
    """What the folder says of the processor itself, beside its parts."""
    file = folder / "processor_config.json"
    said = json.loads(file.read_text()) if file.is_file() else {}
    known = ("processor_class", "auto_map", "chat_template", "audio_tokenizer")
    return {
        name: value
        for name, value in said.items()
        if name not in known and not name.endswith(("_processor", "tokenizer", "extractor"))
    }


def _input(name: str, values: Any) -> Array:
    array = np.ascontiguousarray(np.asarray(values))
    return array.astype(np.bool_) if name in _MASKS else array
