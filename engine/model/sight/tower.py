"""What turns a picture into rows of the text model's embeddings: the model's own modules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from engine.batch.pictures import Mutuality, Seen
from engine.model.sight.pausing import let_pause

_SHOWN: Final = 1
"""The kind of a token that stands for a picture, where positions have three parts."""


class Tower:
    """Sees pictures one by one."""

    def __init__(
        self,
        inner: Any,
        token_id: int,
        axes: Tensor | None = None,
        tiles: int | None = None,
        mutual: Mutuality | None = None,
    ) -> None:
        """`inner` has `get_image_features`. With `axes`, see `engine.model.sight.families`, its
        `get_rope_index` says where tokens are turned to; `tiles` are told there, too. Tokens of a
        picture see each other as `mutual` says.
        """
        self.mutual = mutual
        self._tiles = tiles
        self.token_id = token_id
        self.axes = axes
        self._inner = inner

    def pausing(self, pause: Callable[[], None]) -> None:
        """Call `pause` wherever other work may be done: see `engine.model.sight.pausing`."""
        let_pause(self._inner, pause)

    @torch.inference_mode()
    def see(self, inputs: Mapping[str, np.ndarray[Any, Any]], token_ids: list[int]) -> Seen:
        """What it makes of a processor's `inputs`, which `token_ids` stand for in the prompt.

        Raises `ValueError` where there are not as many of them as there is to see.
        """
        device = self._inner.device
        tensors = {name: self._tensor(array) for name, array in inputs.items()}
        found = [
            self._inner.get_image_features(**part, return_dict=True)
            for part in self._parts(tensors)
        ]
        values = torch.cat([_joined(part.pooler_output) for part in found])
        num_tokens = token_ids.count(self.token_id)
        if len(values) != num_tokens:
            raise ValueError(f"{num_tokens} tokens stand for {len(values)} rows of a picture")
        deep = getattr(found[0], "deepstack_features", None)
        seen = Seen(values, None if deep is None else torch.stack(list(map(_joined, deep))))
        if self.axes is None:
            return seen
        ids = torch.tensor([token_ids], device=device)
        positions, _ = self._inner.get_rope_index(
            ids, mm_token_type_ids=_SHOWN * (ids == self.token_id).int(), **tensors
        )
        turned = positions[:, 0].cpu()
        return Seen(seen.values, seen.deep, turned, int(turned.max()) + 1)

    def _parts(self, tensors: dict[str, Tensor]) -> Iterable[dict[str, Tensor]]:
        """What is seen at a time: less of it may be done between two pauses."""
        if self._tiles is None:
            return [tensors]
        split = {name: torch.split(tensor, 1, self._tiles) for name, tensor in tensors.items()}
        return [dict(zip(split, part, strict=True)) for part in zip(*split.values(), strict=True)]

    def _tensor(self, array: np.ndarray[Any, Any]) -> Tensor:
        tensor = torch.from_numpy(array).to(self._inner.device)
        return tensor.to(self._inner.dtype) if tensor.is_floating_point() else tensor


def _joined(features: Any) -> Tensor:
    """Of a picture: one tensor, or one of each of its parts."""
    parts = features if isinstance(features, list | tuple) else [features]
    return torch.cat([part.reshape(-1, part.shape[-1]) for part in parts])
