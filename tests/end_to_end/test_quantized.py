"""The service with products in 8 bits, from the option to an answer."""

from __future__ import annotations

import re
from pathlib import Path

from tests.end_to_end.program import chat, start


def test_a_start_tells_what_eight_bits_cost_and_the_model_still_makes_sense(tmp_path: Path) -> None:
    service = start(tmp_path, "--quantize", "int8")
    try:
        (cost,) = re.findall(r"int8: logits differ by ([\d.]+)%", service.log.read_text())
        question = "What is the capital of France? Answer in one word.\n"
        answer = chat(service.url, service.ready["api_key"], question, "--temperature", "0")
    finally:
        assert service.stop() == 0
    assert 0 < float(cost) < 15
    assert "Paris" in answer.stdout
