"""What is drawn is the same in every run: a change is judged, not luck."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
