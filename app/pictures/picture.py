"""What is known of a picture, and why it may be refused."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from engine.api import PictureHeader

Detail = Literal["auto", "low", "high"]
"""`low` shrinks a picture to at most `LOW_PIXELS` by as many."""

LOW_PIXELS: Final = 512
FORMATS: Final = ("PNG", "JPEG", "WEBP", "GIF")


class BadPicture(Exception):
    """It is refused; the message says why, and names no field."""


class Look(msgspec.Struct, frozen=True):
    """What is known of a picture that was looked at."""

    token_ids: tuple[int, ...]
    """What takes its place in a prompt."""
    digest: bytes
    """Of all that the model is given of it: equal ones show the same."""
    width: int
    height: int
    num_input_bytes: int
    """Of what the model is given."""


class Wanted(msgspec.Struct, frozen=True):
    """What the process that looks at pictures is asked; behind it come the picture's bytes."""

    num_bytes: int
    detail: Detail
    has_inputs: bool
    """Whether what the model is given is wanted, too."""


class Seen(msgspec.Struct, frozen=True):
    """Its answer; behind it come the bytes of the inputs, if these were wanted."""

    look: Look | None = None
    header: PictureHeader | None = None
    error: str | None = None
    """Why the picture is refused."""


class Greeting(msgspec.Struct, frozen=True):
    """What it says when it has begun."""

    error: str | None = None
    """Why it cannot look at any."""
