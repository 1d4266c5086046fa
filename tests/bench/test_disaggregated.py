"""What counts as in time where prefill is compared beside and apart from decode."""

from __future__ import annotations

import pytest

from bench.cluster.disaggregated import Served


@pytest.mark.parametrize(
    ("tokens", "in_time"),
    [
        ([11.9], True),
        ([12.1], False),
        ([11.0, 11.05, 11.1], True),
        ([11.0, 11.06, 11.12], False),
        ([11.0, *(11.19 + number / 1000 for number in range(9))], True),
        ([11.0, *(11.21 + number / 1000 for number in range(9))], False),
    ],
)
def test_a_request_is_in_time_by_its_first_token_its_mean_and_its_longest_gap(
    tokens: list[float], in_time: bool
) -> None:
    assert Served(10.0, tokens).is_in_time(ttft=2.0, itl=0.051) == in_time
