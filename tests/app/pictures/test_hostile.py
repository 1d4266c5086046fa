"""Whatever file a client sends: it is looked at, or refused in words, and the next is served."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest

from app.pictures.eyes import Eyes
from app.pictures.picture import BadPicture, Look
from bench.pictures.hostile import drawn, file_of, hostile
from tests.app.pictures.making import save_processor
from tests.engine.pictures.seeing_models import seeing_model

_COUNT = 500
_MOST_PIXELS = 1_000_000
_GROWTH_BYTES = 256 << 20
"""Of the process that looks, from the first picture to the last."""
_SEEN = {"PNG", "JPEG", "WEBP", "GIF", "one pixel", "CMYK", "grey of 16 bits"}
_REFUSED = {
    "one row": "one side is too short",
    "an animated GIF": "animated",
    "an animated PNG": "animated",
    "an animated WebP": "animated",
    "a hundred megapixels of nothing": "1000000 are allowed",
    "a header of two billion pixels": "1000000 are allowed",
    "SVG": "is none of PNG",
    "SVG that names a file": "is none of PNG",
    "TIFF": "is none of PNG",
    "nothing": "is none of PNG",
}


@pytest.fixture(scope="module")
def eyes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Eyes]:
    folder = tmp_path_factory.mktemp("model")
    seeing_model("smolvlm", folder)
    save_processor("smolvlm", folder)
    eyes = Eyes(folder, _MOST_PIXELS, seconds=60)
    yield eyes
    eyes.close()


async def test_each_is_right_or_refused(eyes: Eyes) -> None:
    expected = await eyes.look("a", file_of(drawn()))
    pid = eyes.pid
    before = psutil.Process(pid).memory_info().rss
    found: dict[str, Look | str] = {}
    for name, data in hostile(_COUNT):
        try:
            found[name] = await eyes.look("a", data)
        except BadPicture as error:
            found[name] = str(error)
    assert len(found) == _COUNT
    for name in _SEEN:
        assert isinstance(found[name], Look), found[name]
    for name, why in _REFUSED.items():
        assert why in str(found[name]), name
    assert not [said for said in found.values() if isinstance(said, str) and "/" in said]
    assert eyes.pid == pid, "no file has killed it"
    assert psutil.Process(pid).memory_info().rss < before + _GROWTH_BYTES
    assert await eyes.look("a", file_of(drawn())) == expected
