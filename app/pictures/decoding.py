"""From a file's bytes to a picture of red, green and blue: upright, and on white."""

from __future__ import annotations

import io
import warnings
from typing import Final

from PIL import Image, ImageOps, UnidentifiedImageError

from app.pictures.picture import FORMATS, LOW_PIXELS, BadPicture, Detail

_MOST_STRETCHED: Final = 200
"""How many times longer one side may be than the other: processors divide by these."""
_WHITE: Final = (255, 255, 255)


def decode(data: bytes, detail: Detail, most_pixels: int) -> Image.Image:
    """The picture in `data`. Raises `BadPicture` for what is none, or has too many pixels."""
    image = _opened(data, most_pixels)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image.load()
            upright = ImageOps.exif_transpose(image)
            plain = _plain(upright)
            if detail == "low":
                plain.thumbnail((LOW_PIXELS, LOW_PIXELS), Image.Resampling.BICUBIC)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a broken file makes a decoder raise
        raise BadPicture(f"cannot be decoded: {_told(error)}") from None
    return plain


def _opened(data: bytes, most_pixels: int) -> Image.Image:
    Image.MAX_IMAGE_PIXELS = None  # its size is looked at here, before any of it is decoded
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image = Image.open(io.BytesIO(data), formats=FORMATS)
            is_animated = getattr(image, "is_animated", False)
    except UnidentifiedImageError:
        raise BadPicture(f"is none of {', '.join(FORMATS)}") from None
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001
        raise BadPicture(f"cannot be read: {_told(error)}") from None
    width, height = image.size
    if width * height > most_pixels:
        raise BadPicture(f"has {width} x {height} pixels, and {most_pixels} are allowed")
    if not width * height or max(width, height) > _MOST_STRETCHED * min(width, height):
        raise BadPicture(f"has {width} x {height} pixels: one side is too short for the other")
    if is_animated:
        raise BadPicture("is animated: send one of its frames")
    return image


def _plain(image: Image.Image) -> Image.Image:
    """In RGB, of 8 bits, on white where something shines through."""
    if image.mode.startswith("I") or image.mode == "F":  # of 16 bits, which would be cut off
        image = image.convert("I").point([value >> 8 for value in range(1 << 16)], "L")
    if image.mode == "RGB":
        return image
    if "A" in image.mode or "transparency" in image.info:
        image = image.convert("RGBA")
        whole = Image.new("RGB", image.size, _WHITE)
        whole.paste(image, mask=image.getchannel("A"))
        return whole
    return image.convert("RGB")


def _told(error: Exception) -> str:
    """What a decoder says of it, without a place in memory or a name of a class of its own."""
    said = str(error).partition("\n")[0].partition("<")[0].strip(" .:")
    return said[:120] or type(error).__name__
