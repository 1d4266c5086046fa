"""A small model with a tokenizer, and what it says when each of its scores is filtered by hand."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from llguidance import LLMatcher
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LogitsProcessor, PreTrainedModel, PreTrainedTokenizerFast

from engine.api import EngineRequest, Grammar
from engine.assembly.parts import Parts
from engine.constraint.follower import Followers
from engine.constraint.held_drafts import Held
from engine.constraint.masks import Masks, Turns
from engine.draft.drafter import Drafter
from engine.draft.lookup import PromptLookup
from engine.grammar.grammars import Grammars
from engine.grammar.source import serialized
from engine.grammar.vocabulary import Vocabulary
from engine.run.runner import AheadRunner, ModelRunner
from engine.serve.core import EngineCore
from tests.engine.model.test_model import save_model
from tests.engine.run.test_graphs import recorded
from tests.engine.simulated_model import EOS

VOCAB = 1000
CONTROL = ("<pad>", "<bos>", "<|im_end|>", "<eos>")
PICK = Grammar(kind="regex", source="(yes|no), [a-z ]{3,9}[.!]")
NUMBERS = Grammar(
    kind="lark", source='start: "[" NUMBER ("," NUMBER)~2 "]"\nNUMBER: /-?[1-9][0-9]?/'
)
RECORD = Grammar(
    kind="json_schema",
    source=json.dumps(
        {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 5},
                "kind": {"enum": ["wall", "door"]},
                "age": {"type": "integer", "minimum": 0, "maximum": 99},
            },
            "required": ["name", "kind", "age"],
            "additionalProperties": False,
            "x-guidance": {"whitespace_flexible": False},
        }
    ),
)
GRAMMARS = [PICK, NUMBERS, RECORD]


def save_tokenizer(folder: Path) -> None:
    """All bytes, behind them pairs of common ones, and four control tokens before all."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    common = '"{}[]:,.-aeiourstnlmdkw0123456789'
    pairs = ("".join(pair) for pair in itertools.product(common, repeat=2))
    tokens = [*CONTROL, *letters, *itertools.islice(pairs, VOCAB - 260)]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in CONTROL])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=CONTROL[EOS])
    fast.save_pretrained(folder)


def save(folder: Path) -> PreTrainedModel:
    """A model whose tokens have bytes, and which ends with token 3."""
    model = save_model("llama", folder)
    save_tokenizer(folder)
    config = json.loads((folder / "config.json").read_text()) | {"eos_token_id": EOS}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").unlink()
    return model


def text(tokens: Iterable[int], vocabulary: Vocabulary) -> str:
    """What tokens say, without the end."""
    return vocabulary.tokenizer.decode_str([token for token in tokens if token != EOS])


class _Filter(LogitsProcessor):
    """Asks a new matcher at each token."""

    def __init__(self, grammar: Grammar, vocabulary: Vocabulary, num_prompt_tokens: int) -> None:
        self._grammar = serialized(grammar)
        self._vocabulary = vocabulary
        self._num_prompt_tokens = num_prompt_tokens

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        matcher = LLMatcher(self._vocabulary.tokenizer, self._grammar)
        assert matcher.consume_tokens(input_ids[0, self._num_prompt_tokens :].tolist())
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        allowed = torch.from_numpy(np.unpackbits(bits, bitorder="little")[:VOCAB]) > 0
        return scores.masked_fill(~allowed, -torch.inf)


def filtered(
    model: PreTrainedModel,
    prompt: list[int],
    count: int,
    grammar: Grammar,
    vocabulary: Vocabulary,
    **options: float,
) -> list[int]:
    """The slow reference: `generate()`, greedy, with a matcher of its own and more `options`."""
    ids = torch.tensor([prompt])
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=count,
        do_sample=False,
        eos_token_id=EOS,
        pad_token_id=0,
        logits_processor=[_Filter(grammar, vocabulary, len(prompt))],
        **options,
    )
    return list(output[0, len(prompt) :].tolist())


def constraining(
    parts: Parts,
    *,
    runs_ahead: bool = False,
    is_recorded: bool = False,
    drafter: Drafter | None = None,
    is_held: bool = False,
) -> EngineCore:
    """An engine of `parts` that knows grammars, which may add to what a `drafter` guesses."""
    assert parts.vocabulary is not None
    followers = Followers()
    if is_held:
        drafter = Held(drafter or PromptLookup(), followers)
    runner = (AheadRunner if runs_ahead else ModelRunner)(
        parts.model,
        parts.costs if parts.info.num_host_blocks else None,
        graphs=recorded(parts) if is_recorded else None,
        masks=Masks(parts.vocabulary, followers),
    )
    grammars = Grammars(parts.vocabulary)
    return EngineCore(
        parts.config,
        parts.info,
        runner,
        parts.costs,
        drafter=drafter,
        grammars=grammars,
        turns=Turns(followers),
    )


def start(core: EngineCore, requests: Iterable[EngineRequest]) -> None:
    """Submit requests, and let all have their grammars before the first step."""
    for request in requests:
        core.submit(request)
    while core.arrivals:
        assert core.arrivals.advance(has_steps=False) == []
