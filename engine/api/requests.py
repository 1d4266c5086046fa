"""What goes in: prompts, and how they are to be continued."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from engine.api.pictures import PictureUse


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How the next token is chosen. The service validates ranges; see `app.wire.common`.

    `temperature == 0` means greedy. `max_tokens == 0` computes the prompt and generates nothing,
    which is how a prompt is warmed. Before `min_tokens` no stop token is chosen. `logprobs` is the
    number of alternatives reported beside the chosen token (0: only the chosen token's own), `None`
    for no log-probabilities. `prompt_logprobs` is the same for the prompt's tokens behind the
    first: blocks of the cache tell none, so all of these tokens are computed.
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    seed: int = 0
    stop_token_ids: tuple[int, ...] = ()


class Namespaces(msgspec.Struct, frozen=True, kw_only=True):
    """Who may share this request's blocks.

    Blocks that lie wholly within the first `shared_tokens` tokens are hashed under `shared_key`
    (the tenant's), all later ones under `private_key` (the end user's).
    """

    shared_key: bytes
    private_key: bytes
    shared_tokens: int = 0


class CachePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What a request may find in the cache, and what it leaves there.

    The first `up_to` tokens of its prompt may be found and can be found afterwards, wherever in a
    block they end; `None`: all, and what is generated; 0: nothing. These blocks are leased for
    `lease_s` seconds after the tenant's last use of them: up to its `max_leased_blocks`, they are
    the last to be evicted. With 0 only the leases that they have are renewed.

    Later prompts are expected to go on behind one of the `ends`, as tokens of this one: where a
    client says so, and where this conversation's next turn parts from it. Unsaid, that is its end.
    """

    lease_s: float = 0.0
    up_to: int | None = None
    ends: tuple[int, ...] = ()


NOTHING_CACHED: Final = CachePolicy(up_to=0)


class BeamParams(msgspec.Struct, frozen=True, kw_only=True):
    """Beam search in place of sampling, as `transformers` defines it.

    `num_beams` (at least 2) lines are searched, and the `num_return` best hypotheses returned. A
    hypothesis scores its log-probability divided by its output length to the power of
    `length_penalty`. `early_stopping`: stop at the first `num_beams` finished hypotheses (`True`),
    when a better one is unlikely (`False`) or impossible (`None`, "never" in `transformers`).
    """

    num_beams: int
    num_return: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | None = False


class Grammar(msgspec.Struct, frozen=True, kw_only=True):
    """What an output is to be: all of it, from its first token to an end token.

    `kind` says how `source` is read: as a JSON schema, as a regular expression (Rust's syntax), or
    as a context-free grammar in `llguidance`'s dialect of Lark. See `engine.grammar.source`. It may
    name control tokens as `<[id]>`; of these only `tokens` are ever drawn. What the rule
    `preamble`, in Lark, derives stands before it, where there is such a rule.
    """

    kind: Literal["json_schema", "regex", "lark"]
    source: str
    tokens: tuple[int, ...] = ()
    preamble: str = ""


OF_GRAMMAR: Final = "the grammar"
"""How the error of a delta begins that a request's grammar is the reason of."""


class AdapterUse(msgspec.Struct, frozen=True):
    """An adapter that acts from token `start` of a prompt on: 0, or where it is invoked (activated
    LoRA: Greenewald et al., 2025).

    Its `name` is a keyed digest of its weights, which only who may use it can make; the engine asks
    the service for what it does not have of that name (`EngineClient.adapters`).
    """

    name: bytes
    start: int = 0
    pin: str | None = None
    """Under this name its blocks stay until `unpin`, or until another adapter's are to; not where
    the tenant may not have so many pinned."""


class TenantShare(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant may have of the engine; the newest one that was seen counts.

    `weight` is its share of service beside other tenants. Cached blocks up to `reserved_blocks` are
    never evicted for another tenant. Its running requests hold at most `max_blocks` blocks
    together, its pinned prompts at most `max_pinned_blocks`; `None` is no limit. It may lease
    `max_leased_blocks`; `None`: as many as the engine's `lease_share` allows.
    """

    weight: float = 1.0
    reserved_blocks: int = 0
    max_blocks: int | None = None
    max_pinned_blocks: int | None = None
    max_leased_blocks: int | None = None


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt to continue. `tenant` is an opaque label for fairness and accounting.

    `num_sequences` continuations are sampled from one prefill, each with a seed of its own; with
    `beam` (then `num_sequences == 1` and `temperature == 0`) the best ones are searched for.

    `generated` holds, by sequence, output tokens that an earlier run of the same request has
    delivered already (empty: none): generation goes on behind them exactly as if it had never
    stopped, `max_tokens` and penalties included; `cached_tokens` is what that run has reported.
    `num_scored` is for how many of the prompt's tokens it has delivered log-probabilities.
    Sequences that were over already are `ended`: they are neither computed nor reported again.
    With a `grammar` only tokens are drawn that one of its outputs may go on with, and end tokens
    only behind a whole one. `deaths` is how many engines in a row have died with it and got nowhere
    with it. `pin` names a prompt (`max_tokens == 0`) whose full blocks stay in the
    pool until `unpin`. Of a tenant's requests, those of higher `priority` are served first; between
    tenants it says nothing. What it leaves in the cache is told under the name of its
    `conversation`, if it has one (`EngineClient.chains`). Behind the token where its `adapter`
    acts it finds, and leaves, blocks of that adapter alone. Its `pictures` come in the order of
    their tokens.
    """

    request_id: str
    tenant: str
    prompt: list[int]
    namespaces: Namespaces
    sampling: SamplingParams
    share: TenantShare = TenantShare()
    num_sequences: int = 1
    beam: BeamParams | None = None
    grammar: Grammar | None = None
    generated: list[list[int]] = []
    ended: tuple[int, ...] = ()
    cached_tokens: int | None = None
    num_scored: int = 0
    deaths: int = 0
    cache: CachePolicy = CachePolicy()
    pin: str | None = None
    priority: int = 0
    conversation: str | None = None
    adapter: AdapterUse | None = None
    pictures: tuple[PictureUse, ...] = ()

    def without_answers(self) -> EngineRequest:
        """The same, which leaves nothing in the cache that is behind its prompt."""
        most = len(self.prompt) if self.cache.up_to is None else self.cache.up_to
        return msgspec.structs.replace(self, cache=msgspec.structs.replace(self.cache, up_to=most))

    @property
    def adapter_name(self) -> bytes:
        """Of its adapter; empty where it has none."""
        return b"" if self.adapter is None else self.adapter.name

    @property
    def brought(self) -> set[bytes]:
        """The names of what the engine may ask for: its adapter and its pictures."""
        names = {one.name for one in self.pictures}
        return names if self.adapter is None else names | {self.adapter.name}

    @property
    def answer_key(self) -> bytes:
        """Whoever may find its answers asks the same model."""
        return self.namespaces.private_key + self.adapter_name

    @property
    def num_outputs(self) -> int:
        """How many indices end, each with a `finish_reason` of its own."""
        return self.num_sequences if self.beam is None else self.beam.num_return

    @property
    def num_lines(self) -> int:
        """How many sequences may be computed at once."""
        return self.num_sequences if self.beam is None else self.beam.num_beams

    @property
    def num_generated(self) -> int:
        """Output tokens that an earlier run has delivered, all sequences together."""
        return sum(map(len, self.generated))

    def generated_by(self, index: int) -> list[int]:
        """Output tokens that sequence `index` has delivered in an earlier run."""
        return self.generated[index] if index < len(self.generated) else []

    def without(self, index: int | None) -> EngineRequest | None:
        """The same without its sequence `index`; `None` if nothing is left of it, or for all."""
        ended = (*self.ended, index)
        if index is None or len(ended) >= self.num_outputs:
            return None
        return msgspec.structs.replace(self, ended=ended)
