"""What is seen from outside is as it was: interfaces, metrics, commands, settings, answers.

Who means to change one of them writes its snapshot anew (`python -m tests.snapshots`), and its
difference shows what others have to be told.
"""

from __future__ import annotations

import pytest

from tests.snapshots.subjects import SUBJECTS, path_of, text_of


@pytest.mark.parametrize("name", SUBJECTS)
def test_what_is_seen_from_outside_is_as_it_was(name: str) -> None:
    assert text_of(name) == path_of(name).read_text()
