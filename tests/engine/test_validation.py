"""Requests that no state of the engine could serve are refused, and the field is named."""

import pytest
from msgspec import structs

from engine.api import BeamParams, RequestRefused, SamplingParams, TenantShare
from engine.validation import check_request
from tests.engine.simulated_model import EOS
from tests.engine.simulation import make_request, simulated_core


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"num_sequences": 0}, "num_sequences"),
        ({"num_sequences": 17}, "num_sequences"),
        ({"num_sequences": 2, "pin": "p"}, "pin"),
        ({"num_sequences": 2, "generated": [[5], [], [5]]}, "generated"),
        ({"num_sequences": 2, "generated": [[5], [5, EOS, 5]]}, "generated"),
        ({"num_sequences": 2, "ended": (1, 0)}, "ended"),
        ({"num_sequences": 3, "share": TenantShare(max_blocks=8)}, "max_tokens"),
        ({"num_sequences": 16, "prompt": [5] * 250}, "max_tokens"),
        ({"beam": BeamParams(num_beams=1)}, "num_beams"),
        ({"beam": BeamParams(num_beams=17)}, "num_beams"),
        ({"beam": BeamParams(num_beams=4, num_return=5)}, "num_return"),
        ({"beam": BeamParams(num_beams=4), "num_sequences": 2}, "num_beams"),
        ({"beam": BeamParams(num_beams=4), "generated": [[5]]}, "generated"),
        (
            {
                "beam": BeamParams(num_beams=4),
                "sampling": SamplingParams(max_tokens=9, min_tokens=1, temperature=0),
            },
            "min_tokens",
        ),
        ({"sampling": SamplingParams(max_tokens=9, min_tokens=10)}, "min_tokens"),
        ({"sampling": SamplingParams(max_tokens=9, prompt_logprobs=-1)}, "prompt_logprobs"),
        ({"num_scored": 6}, "num_scored"),
        (
            {"beam": BeamParams(num_beams=4), "sampling": SamplingParams(max_tokens=9)},
            "num_beams",
        ),
    ],
)
def test_sequences_and_beams_that_can_never_be_served_are_refused(
    fields: dict[str, object], param: str
) -> None:
    core = simulated_core()
    request = make_request("r", [5] * 6, 8 if fields.get("pin") is None else 0)
    fits = {"share": TenantShare(max_blocks=3 + 2 * 2)}
    check_request(structs.replace(request, num_sequences=2, **fits), core.info)
    with pytest.raises(RequestRefused) as refusal:
        check_request(structs.replace(request, **fields), core.info)
    assert refusal.value.param == param


def test_sequences_that_may_part_at_the_rotary_switch_need_room_for_two_prompts() -> None:
    info = simulated_core(num_blocks=20, rotary_switch=44).info
    request = make_request("r", [5] * 40, 12, num_sequences=2)  # 10 blocks, and 3 for each
    with pytest.raises(RequestRefused, match="fill 26 blocks; there are 20"):
        check_request(request, info)
    for prompt in ([5] * 33, [5] * 45):
        check_request(structs.replace(request, prompt=prompt), info)
    check_request(structs.replace(request, num_sequences=1), info)
    check_request(structs.replace(request, num_sequences=1, beam=BeamParams(num_beams=2)), info)


@pytest.mark.parametrize("top_k", [-1, 2**63, 2**64])
def test_a_number_that_no_engine_can_be_sent_is_refused_at_the_door(top_k: int) -> None:
    """In a process of its own: sending it would end whatever is sent in the same turn."""
    info, request = simulated_core().info, make_request("r", [5] * 6, 8)
    greatest = SamplingParams(max_tokens=8, top_k=2**63 - 1)
    check_request(structs.replace(request, sampling=greatest), info)
    request = structs.replace(request, sampling=structs.replace(greatest, top_k=top_k))
    with pytest.raises(RequestRefused) as refusal:
        check_request(request, info)
    assert refusal.value.param == "top_k"
