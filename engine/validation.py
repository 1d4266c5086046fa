"""The door: which requests can never be served, told before they queue."""

from __future__ import annotations

import math
from itertools import groupby

from engine.api import EngineInfo, EngineRequest, Grammar, RequestRefused

_MAX_LENGTH_PENALTY = 5
"""With it the scores of the longest outputs are still float32 numbers."""

MAX_GRAMMAR_BYTES = 65_536
"""Of a grammar's source."""

MAX_DEFINITIONS = 256
"""Rules and terminals of a grammar in Lark: to compile a chain of them takes the square of it."""

MAX_LEASE_SECONDS = 7 * 86_400.0

MAX_NAME_BYTES = 64

_MAX_TOP_K = 2**63 - 1
"""What a tensor of integers holds, and a message to the engine's process."""


def check_request(request: EngineRequest, info: EngineInfo) -> None:
    """Raise `RequestRefused` if no state of the engine could ever serve `request`."""
    prompt, sampling = request.prompt, request.sampling
    if not prompt:
        raise RequestRefused("the prompt is empty", "prompt")
    if not 0 <= min(prompt) <= max(prompt) < info.vocab_size:
        raise RequestRefused("the prompt holds token ids outside the vocabulary", "prompt")
    if sampling.max_tokens < 0:
        raise RequestRefused("max_tokens must not be negative", "max_tokens")
    if not 0 <= sampling.min_tokens <= sampling.max_tokens:
        raise RequestRefused(f"min_tokens must be 0 ... {sampling.max_tokens}", "min_tokens")
    if any(not 0 <= token < info.vocab_size for token in sampling.logit_bias):
        raise RequestRefused("logit_bias names token ids outside the vocabulary", "logit_bias")
    if not 0 <= sampling.top_k <= _MAX_TOP_K:
        raise RequestRefused(f"top_k must be 0 ... {_MAX_TOP_K}", "top_k")
    for field in ("logprobs", "prompt_logprobs"):
        wanted = getattr(sampling, field)
        if wanted is not None and not 0 <= wanted < info.vocab_size:
            raise RequestRefused(f"{field} is out of range", field)
    if not 0 < request.share.weight < math.inf:
        raise RequestRefused("a tenant's weight must be more than 0", "share")
    if request.pin is not None and (
        sampling.max_tokens > 0 or request.cache.up_to is not None or request.num_lines > 1
    ):
        raise RequestRefused("only a cached prompt without output can be pinned", "pin")
    if request.cache.up_to is not None and not 0 <= request.cache.up_to <= len(prompt):
        raise RequestRefused(f"up_to must be 0 ... {len(prompt)}, within the prompt", "cache")
    if not 0 <= request.cache.lease_s <= MAX_LEASE_SECONDS:
        raise RequestRefused(f"lease_s must be 0 ... {MAX_LEASE_SECONDS:.0f}", "cache")
    _check_lines(request, info)
    _check_grammar(request, info)
    _check_adapter(request, info)
    _check_pictures(request, info)
    _check_generated(request, info)
    total = len(prompt) + sampling.max_tokens
    if total > info.max_context_tokens:
        raise RequestRefused(
            f"{len(prompt)} prompt tokens and {sampling.max_tokens} output tokens exceed the "
            f"context of {info.max_context_tokens} tokens",
            "max_tokens" if len(prompt) < info.max_context_tokens else "prompt",
        )
    pages, allowed = _most_pages(request, info), request.share.max_blocks
    blocks = -(-pages // info.block_pages)
    several = f" in {request.num_lines} sequences" if request.num_lines > 1 else ""
    filled = (
        f"{len(prompt)} prompt tokens and {sampling.max_tokens} output tokens{several} "
        f"fill {blocks} blocks"
    )
    if allowed is not None and blocks > allowed:
        raise RequestRefused(
            f"{filled}; the tenant's limit is {allowed} blocks",
            "max_tokens" if len(prompt) < allowed * info.block_size else "prompt",
        )
    if pages > info.memory_pages:
        raise RequestRefused(f"{filled}; there are {info.num_blocks}", "max_tokens")


def _most_pages(request: EngineRequest, info: EngineInfo) -> int:
    """What the request may come to hold: its sequences share the full blocks of the prompt, if all
    have the same rotary factors, and no other for certain.
    """
    prompt, output = len(request.prompt), request.sampling.max_tokens
    if output == 0:
        # They share even the last block, and what all of them see last is held from the beginning.
        return info.pages_for(prompt + -prompt % info.block_size, prompt, request.num_lines)
    again = info.pages_for(prompt, prompt - prompt % info.block_size)
    together = info.pages_for(prompt, prompt + output, request.num_lines)
    return together + again * _may_part(request, info)


def _may_part(request: EngineRequest, info: EngineInfo) -> bool:
    """Whether some of its sequences may be beyond the rotary switch while others are not yet, so
    that their KV of the prompt differs. The beams of a search are all of one length.
    """
    if info.rotary_switch is None or request.num_sequences == 1:
        return False
    shortest, longest = len(request.prompt), len(request.prompt) + request.sampling.max_tokens - 1
    return shortest <= info.rotary_switch < longest


def _check_lines(request: EngineRequest, info: EngineInfo) -> None:
    """Whether there can be so many sequences."""
    beam, most = request.beam, info.max_running_sequences
    if not 1 <= request.num_sequences <= most:
        raise RequestRefused(f"num_sequences must be 1 ... {most}", "num_sequences")
    if beam is None:
        return
    if not 2 <= beam.num_beams <= most:
        raise RequestRefused(f"num_beams must be 2 ... {most}", "num_beams")
    if not 1 <= beam.num_return <= beam.num_beams:
        raise RequestRefused("num_return must be 1 ... num_beams", "num_return")
    if request.num_sequences > 1 or request.sampling.temperature > 0:
        raise RequestRefused("beams are searched, not sampled", "num_beams")
    if info.vocab_size < beam.num_beams + len(set(request.sampling.stop_token_ids)):
        raise RequestRefused("the vocabulary is too small for so many beams", "num_beams")
    if not abs(beam.length_penalty) <= _MAX_LENGTH_PENALTY:
        raise RequestRefused(
            f"length_penalty must be -{_MAX_LENGTH_PENALTY} ... {_MAX_LENGTH_PENALTY}",
            "length_penalty",
        )
    if request.sampling.max_tokens == 0:
        raise RequestRefused("a beam search needs room for a token", "max_tokens")
    if request.sampling.min_tokens:
        raise RequestRefused("a beam search has no shortest output", "min_tokens")
    if request.sampling.logprobs is not None:
        raise RequestRefused("beams have a score instead of log-probabilities", "logprobs")


def excess_of(grammar: Grammar) -> str | None:
    """The bound that a grammar's source is beyond, if it is beyond one."""
    if len(grammar.source.encode()) > MAX_GRAMMAR_BYTES:
        return f"{MAX_GRAMMAR_BYTES} bytes at most"
    # Each begins a line. A colon in a string counts as well: there are few.
    definitions = sum(":" in line for line in grammar.source.split("\n"))
    if grammar.kind == "lark" and definitions > MAX_DEFINITIONS:
        return f"{MAX_DEFINITIONS} rules and terminals at most"
    return None


def _check_grammar(request: EngineRequest, info: EngineInfo) -> None:
    """Whether outputs can be held to the grammar, as far as that is known without reading it."""
    grammar = request.grammar
    if grammar is None:
        return
    if not info.has_grammars:
        raise RequestRefused("this model's outputs cannot be held to a grammar", "grammar")
    if excess := excess_of(grammar):
        raise RequestRefused(f"a grammar may have {excess}", "grammar")
    if any(not 0 <= token < info.vocab_size for token in grammar.tokens):
        raise RequestRefused("the grammar has token ids outside the vocabulary", "grammar")
    if request.beam is not None:
        raise RequestRefused("beams are not held to a grammar", "grammar")
    if request.sampling.min_tokens:
        raise RequestRefused("what has a grammar ends where that says", "min_tokens")
    if not set(info.eos_token_ids) <= set(request.sampling.stop_token_ids):
        raise RequestRefused("the model's end tokens must stop what has a grammar", "grammar")


def _check_adapter(request: EngineRequest, info: EngineInfo) -> None:
    """Whether there can be an adapter, as far as that is known without its weights."""
    use = request.adapter
    if use is None:
        return
    if not info.linears:
        raise RequestRefused("this engine serves no adapters", "adapter")
    if not 0 < len(use.name) <= MAX_NAME_BYTES:
        raise RequestRefused(f"a name has 1 ... {MAX_NAME_BYTES} bytes", "adapter")
    if not 0 <= use.start < len(request.prompt):
        raise RequestRefused("an adapter acts from a token of the prompt on", "adapter")


def _check_pictures(request: EngineRequest, info: EngineInfo) -> None:
    """Whether pictures can be where they are said to be."""
    if request.pictures and info.picture_token_id is None:
        raise RequestRefused("this model sees no pictures", "pictures")
    end = 0
    for use in request.pictures:
        if not 0 < len(use.name) <= MAX_NAME_BYTES:
            raise RequestRefused(f"a name has 1 ... {MAX_NAME_BYTES} bytes", "pictures")
        if not (end <= use.start < use.end <= len(request.prompt)):
            raise RequestRefused("pictures lie in the prompt, one behind the other", "pictures")
        if info.picture_token_id not in request.prompt[use.start : use.end]:
            raise RequestRefused("a picture has tokens that stand for it", "pictures")
        end = use.end
        longest = _longest_run(request.prompt[use.start : use.end], info.picture_token_id)
        if info.has_mutual_pictures and longest > info.step_tokens - info.max_running_sequences:
            raise RequestRefused(
                f"a picture has {longest} tokens, which are computed in one step: step_token_budget"
                " is to have as many more than max_running_requests",
                "pictures",
            )


def _longest_run(token_ids: list[int], token_id: int | None) -> int:
    return max(len(list(run)) for one, run in groupby(token_ids) if one == token_id)


def _check_generated(request: EngineRequest, info: EngineInfo) -> None:
    """Whether an earlier run of the same request can have generated these tokens."""
    sampling = request.sampling
    if len(request.generated) > request.num_sequences:
        raise RequestRefused("generated holds more than num_sequences sequences", "generated")
    if request.beam is not None and (request.generated or request.ended):
        raise RequestRefused("a beam search starts from its prompt", "generated")
    if set(request.ended) >= set(range(request.num_outputs)):
        raise RequestRefused("every sequence has ended already", "ended")
    if not 0 <= request.num_scored < len(request.prompt):
        raise RequestRefused("num_scored is not within the prompt", "num_scored")
    for tokens in request.generated:
        if len(tokens) > sampling.max_tokens:
            raise RequestRefused("generated holds more than max_tokens tokens", "generated")
        if any(not 0 <= token < info.vocab_size for token in tokens):
            raise RequestRefused("generated holds token ids outside the vocabulary", "generated")
        if any(token in sampling.stop_token_ids for token in tokens[:-1]):
            raise RequestRefused("generated goes on behind a stop token", "generated")
