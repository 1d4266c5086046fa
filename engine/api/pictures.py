"""Pictures that prompts show."""

from __future__ import annotations

import msgspec


class PictureUse(msgspec.Struct, frozen=True):
    """A picture that a prompt shows in its `count` tokens from `start` on.

    Those of them that are `EngineInfo.picture_token_id` stand for what the model's tower makes of
    it. Its `name` is a keyed digest of what that is given, which only who may use it can make; the
    engine asks the service for what it does not have of that name.
    """

    name: bytes
    start: int
    count: int

    @property
    def end(self) -> int:
        """Where the prompt goes on behind it."""
        return self.start + self.count


class PictureInput(msgspec.Struct, frozen=True):
    """One of the arrays that a model's processor makes of a picture."""

    name: str
    """As the model's `get_image_features` calls it."""
    dtype: str
    """As numpy calls it."""
    shape: tuple[int, ...]


class PictureHeader(msgspec.Struct, frozen=True):
    """What a picture that is brought begins with, in JSON: behind it come the bytes of these, in
    their order and without gaps.
    """

    inputs: tuple[PictureInput, ...]
