from __future__ import annotations

import pytest

from tests.app.transport.raw import Reader


@pytest.fixture
def reader() -> Reader:
    return Reader()
