"""Beams of the default model over paged blocks: outputs and scores are those of `generate()`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer

from engine.api import BeamParams, SamplingParams, TokenDelta
from engine.assembly.assemble import load_core
from engine.config import EngineConfig
from engine.serve.core import EngineCore
from tests.effort import scaled
from tests.end_to_end.conftest import BLOCK_SIZE, FP32_BLOCK_BYTES
from tests.engine.simulation import make_request

NUM_BEAMS = 4
MAX_TOKENS = 8
LONGEST_PROMPT = 16
NUM_BLOCKS = 64
TOPICS = ["Norway", "the violin", "a comet", "bread", "silence", "the Nile", "owls", "zero"]
TOPICS += ["rust", "a bridge"]
SHAPES = ["The first thing to know about {} is", "Q: What is {}?\nA:", "She wrote about {} and"]

Outputs = list[tuple[list[int], float]]
"""Each hypothesis of a prompt with its score, best first."""


@pytest.fixture(scope="module")
def core(model_folder: Path) -> Iterator[EngineCore]:
    """With room for some five of these requests, so that they preempt each other."""
    threads = torch.get_num_threads()
    yield load_core(
        EngineConfig(
            model_path=str(model_folder),
            device="cpu",
            dtype="float32",
            block_size=BLOCK_SIZE,
            kv_memory_bytes=NUM_BLOCKS * FP32_BLOCK_BYTES,
            threads=1,
        )
    )
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def stops(core: EngineCore, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Full stops end an output, too, so that many hypotheses end before the last token."""
    return (*core.info.eos_token_ids, *tokenizer.encode("."), *tokenizer.encode("\n"))


@pytest.fixture(scope="module")
def prompts(tokenizer: Tokenizer, questions: list[str]) -> list[list[int]]:
    """The heads of questions, and 8 to 30 beginnings of our own."""
    begun = [shape.format(topic) for shape in SHAPES for topic in TOPICS]
    texts = questions + begun[:: 30 // scaled(8, most=30)]
    return [tokenizer.encode(text)[:LONGEST_PROMPT] for text in texts]


@pytest.fixture(scope="module")
def expected(
    reference: PreTrainedModel, prompts: list[list[int]], stops: tuple[int, ...]
) -> dict[int, Outputs]:
    """What `generate()` returns for each prompt; equally long ones go together, unpadded."""
    by_length: dict[int, list[int]] = defaultdict(list)
    for number, prompt in enumerate(prompts):
        by_length[len(prompt)].append(number)
    expected = {}
    for length, numbers in by_length.items():
        ids = torch.tensor([prompts[number] for number in numbers])
        result = reference.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=MAX_TOKENS,
            do_sample=False,
            num_beams=NUM_BEAMS,
            num_return_sequences=NUM_BEAMS,
            eos_token_id=list(stops),
            pad_token_id=stops[0],
            return_dict_in_generate=True,
            output_scores=True,
        )
        outputs = [_until(stops, row[length:].tolist()) for row in result.sequences]
        pairs = list(zip(outputs, result.sequences_scores.tolist(), strict=True))
        for place, number in enumerate(numbers):
            expected[number] = pairs[place * NUM_BEAMS : (place + 1) * NUM_BEAMS]
    return expected


def _until(stops: tuple[int, ...], tokens: list[int]) -> list[int]:
    """The tokens up to the first stop token; padding follows it."""
    ends = [i + 1 for i, token in enumerate(tokens) if token in stops]
    return tokens[: ends[0]] if ends else tokens


@pytest.mark.scaled
def test_prompts_get_the_sequences_and_scores_of_generate(
    core: EngineCore,
    prompts: list[list[int]],
    stops: tuple[int, ...],
    expected: dict[int, Outputs],
) -> None:
    beam = BeamParams(num_beams=NUM_BEAMS, num_return=NUM_BEAMS)
    sampling = SamplingParams(max_tokens=MAX_TOKENS, temperature=0, stop_token_ids=stops)
    for number, prompt in enumerate(prompts):
        core.submit(make_request(str(number), prompt, beam=beam, sampling=sampling))
    deltas: list[TokenDelta] = []
    while not core.is_idle:
        deltas += core.step()
        core.scheduler.check()
    deltas = [delta for delta in deltas if delta.finish_reason is not None]
    found: dict[int, Outputs] = defaultdict(list)
    for delta in deltas:
        assert delta.score is not None
        assert delta.finish_reason == ("stop" if delta.token_ids[-1] in stops else "length")
        found[int(delta.request_id)].append((delta.token_ids, delta.score))
    assert found.keys() == expected.keys()
    for number, outputs in expected.items():
        assert [tokens for tokens, _ in found[number]] == [tokens for tokens, _ in outputs], number
        scores = [score for _, score in outputs]
        assert [score for _, score in found[number]] == pytest.approx(scores, rel=1e-4)
    ends = [delta.finish_reason for delta in deltas]
    assert min(ends.count("stop"), ends.count("length")) > 20, "one way to end hardly occurred"
    assert core.stats().preemptions > 0, "the pool was meant to be too small"
    assert core.stats().blocks_in_use == 0
