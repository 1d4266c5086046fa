"""The bytes of blocks, copied out and put back: directly, and as beside a device."""

from __future__ import annotations

import random
from pathlib import Path

import torch

from engine.model.layers.paged_model import PagedModel
from engine.run.copies import BlockCopies
from engine.run.images import BlockImages
from tests.engine.model.test_model import make_core, save_model


def filled(folder: Path) -> PagedModel:
    save_model("llama", folder)
    model: PagedModel = make_core(folder, num_blocks=12)._runner._model  # type: ignore[attr-defined]
    model.memory.copy_(torch.randn(model.memory.shape))
    return model


def test_blocks_come_out_and_go_back_bit_for_bit(tmp_path: Path) -> None:
    model = filled(tmp_path)
    images = BlockImages(model, BlockCopies(model))
    before = model.memory.clone()
    fetched = images.fetch([[7], [2], [3]])
    assert fetched.is_there()
    sources = [bytes(image) for image in fetched.images]
    assert [len(source) for source in sources] == [images.page_bytes] * 3
    for landing in (images.landing([[7], [2], [3]]), images._staged_landing([7, 2, 3], 3)):
        model.memory.copy_(before)
        model.memory[[7, 2, 3]] = 0
        for target, source in zip(landing.targets, sources, strict=True):
            target[:] = source
        landing.land()
        assert torch.equal(model.memory, before)


def test_what_is_fetched_is_a_copy(tmp_path: Path) -> None:
    model, rng = filled(tmp_path), random.Random(1)
    images = BlockImages(model, BlockCopies(model))
    for _ in range(5):
        blocks = rng.sample(range(12), rng.randrange(1, 6))
        expected = [model.memory[block].numpy().tobytes() for block in blocks]
        fetched = images.fetch([[block] for block in blocks])
        model.memory[blocks] += 1
        assert [bytes(image) for image in fetched.images] == expected


def test_the_pages_of_a_block_are_one_image(tmp_path: Path) -> None:
    model = filled(tmp_path)
    images, blocks = BlockImages(model, BlockCopies(model)), [[7, 2], [3, 11]]
    before, fetched = model.memory.clone(), images.fetch(blocks)
    sources = [bytes(image) for image in fetched.images]
    assert sources == [model.memory[pages].numpy().tobytes() for pages in blocks]
    landing = images.landing(blocks)
    model.memory[[7, 2, 3, 11]] = 0
    for target, source in zip(landing.targets, sources, strict=True):
        target[:] = source
    landing.land()
    assert torch.equal(model.memory, before)
