"""What crosses the engine's border: a request going in, token deltas coming out."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

FinishReason = Literal["stop", "length", "aborted", "error"]


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
    """

    lease_s: float = 0.0
    up_to: int | None = None


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
    `conversation`, if it has one (`EngineClient.chains`).
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


class TokenLogprobs(msgspec.Struct, frozen=True):
    """Natural-log probabilities of one generated token and of the most likely alternatives."""

    logprob: float
    top: list[tuple[int, float]]


class PromptLogprobs(TokenLogprobs, frozen=True):
    """Those of one token of a prompt, which is the `rank`-th likeliest in its place."""

    rank: int


class TokenDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """New tokens of sequence `index` of a request; its last delta carries `finish_reason`.

    A request is over when each of its `num_outputs` indices is; one that fails or is aborted ends
    all that are left. A beam search delivers nothing before its end: then each hypothesis comes
    whole, best first, with its `score` (`sequences_scores` in `transformers`). Until then it tells
    at each step by how many tokens all its beams have grown so far: `searched_tokens`.

    A stop token is delivered like any other: it is the last of `token_ids` when
    `finish_reason == "stop"`. `cached_tokens` counts prompt tokens that were not computed because
    their blocks were found in the cache when the request was first admitted, `cache_write_tokens`
    those that were computed and can be found from then on. `prompt_logprobs` come in deltas of
    their own, in the prompt's order and before its first output.
    """

    request_id: str
    index: int = 0
    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[PromptLogprobs] = []
    finish_reason: FinishReason | None = None
    score: float | None = None
    searched_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    waited_seconds: float = 0.0
    """How long the request has waited to be admitted since the last time that it was told of: in
    the queue, or, after that, because it was preempted. Told of its first sequence."""
    rebuilt_seconds: float = 0.0
    """How long its reader had nothing because another engine took a dead one's place."""
    error: str | None = None


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a running engine is; constant from ready to close."""

    model: str
    device: str
    dtype: str
    block_size: int
    num_blocks: int
    block_bytes: int = 0
    """What a block takes of the KV memory, a draft model's part included."""
    num_host_blocks: int = 0
    """Blocks that the host tier holds."""
    max_context_tokens: int
    """Prompt plus output of one sequence, at most: never more than the block pool holds."""
    max_running_sequences: int
    """How many sequences run at once, at most, and so how many one request may have."""
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    hash_extras: bytes
    """What else changes KV besides tokens (weights, dtype); part of every block hash."""
    rotary_switch: int | None = None
    """A sequence of more tokens than this is computed with other rotary factors, from its first
    token on, and shares no block with shorter ones; `None`: one set of factors serves all."""
    has_grammars: bool = False
    """Whether outputs can be held to a grammar: the model has a tokenizer that tells its tokens'
    bytes, and an end token."""
    logit_error: float = 0.0
    """How far logits are from the original model's on a few tokens, relatively."""


Loss = Literal["pressure", "own_quota", "expired", "deleted"]
"""Why a block was evicted: there was no other memory; so it was, and its lease had ended before
because the tenant leased too much, or because it had run out; or its tenant was deleted."""


class BlockFate(msgspec.Struct, frozen=True):
    """What has become of a block: `evicted` so many seconds ago, and why.

    What was evicted long ago, or was never there, is unknown.
    """

    state: Literal["present", "evicted", "unknown"]
    seconds_ago: float = 0.0
    why: Loss | None = None


class ChainState(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant's conversation, or a registered prompt in its requests, has in the cache now.

    Tokens are those of full blocks: `tokens` were left by the last request, the first
    `shared_tokens` of them in the shared namespace, as the registered prompt whose last block has
    the hash `prompt` (empty: none). The first `found_tokens` of them would be found, `host_tokens`
    of these in the host tier; the tenant leases `leased_tokens`, the last ones for `lease_seconds`
    more. The last block found on the device is held by so many sequences and pins: `references`.
    Of the conversation's `requests`, `hits` have found something behind the prompt; of those under
    the prompt, all of it. It was begun, and used last, so many seconds ago: `age_seconds`,
    `idle_seconds`. What has a higher `number` was used later.
    """

    number: int
    conversation: str | None
    """`None`: it is the registered prompt's."""
    prompt: bytes
    tokens: int
    shared_tokens: int
    found_tokens: int
    host_tokens: int
    references: int
    leased_tokens: int
    lease_seconds: float
    age_seconds: float
    idle_seconds: float
    requests: int
    hits: int


class ChainPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some of a tenant's chains, the last used ones first."""

    chains: list[ChainState]
    next: int | None = None
    """There may be more, used before this number."""


class ChainBreak(msgspec.Struct, frozen=True, kw_only=True):
    """Where what a request found of its prompt ended, behind so many `tokens`, and why.

    All that may be found was, but for a part of a block (`prompt_ends`), or that is less than a
    block; it asks for nothing of the cache; or the next block was `evicted`, so many seconds ago
    and for the loss `evicted_by`; it was there, but computed again all the same (`not_used`), as
    that is faster, or is to tell log-probabilities; or nothing is known of it.
    """

    tokens: int
    why: Literal[
        "prompt_ends", "prefix_shorter_than_block", "not_asked", "evicted", "not_used", "unknown"
    ]
    evicted_by: Loss | None = None
    seconds_ago: float = 0.0


class RequestState(msgspec.Struct, frozen=True, kw_only=True):
    """A request, and the cells of the wall (`engine.blocks.wall`) that it leans on.

    While it runs, `lines` are the beginnings of its sequences' block tables. Of one that was
    swapped, they are host slots; of any other, the one line is what can be found of its full
    blocks, as far as these are known. `num_blocks` is how long the longest line really is, or was
    or will be, and `num_shared` counts the distinct cells of `lines` that others hold as well.
    """

    request_id: str
    tenant: str
    state: Literal["running", "waiting", "preempted", "finished"]
    prompt_tokens: int
    output_tokens: int
    found_tokens: int | None
    """Of the prompt, when it was admitted first; `None`: it has not been."""
    broke: ChainBreak | None
    num_blocks: int
    num_shared: int
    lines: list[list[int]]


class ChainPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where a block lies in a chain: as block number `number`, from 1, of `blocks`.

    The chain is a tenant's `conversation`, or, where that is `None`, a registered prompt in its
    requests; the times and counts are the chain's, as in `ChainState`.
    """

    tenant: str
    conversation: str | None
    number: int
    blocks: int
    age_seconds: float
    idle_seconds: float
    requests: int
    hits: int


class Roll(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of an engine, in the order in which they came, and behind them those that ended
    lately, the last one first; some of each, where there are many.
    """

    requests: list[RequestState]
    places: list[ChainPlace] = []
    """Some of those of the cell that was asked about, in the chains that were used last."""
    on_disk: dict[str, int] = {}
    """Blocks that are kept on disk, by owner."""
    replicas: int = 1
    """How many engines there are to be asked."""


class ReusePoint(msgspec.Struct, frozen=True):
    """Which part of the blocks that requests asked for a pool of so many `blocks` would have found,
    evicting the least recently used first. An estimate, since the start.
    """

    blocks: int
    found: float


class TenantStats(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant's part of a snapshot. Blocks are distinct ones.

    `blocks_held` are those of its running requests, of which `blocks_shared` are referenced more
    than once; `blocks_cached` are findable and held by nobody; `served` is its virtual counter's
    unit: weighted tokens served so far, divided by its weight. `blocks_leased` are kept because it
    has asked for it, `lease_block_seconds` their number times the seconds for which they were;
    `leases_broken` are leases that ended early because no other blocks were left, `leases_cut`
    those that did because there were more than it may have. These three count from
    `leases_since`, in seconds of the engine's clock: who was forgotten begins again.
    """

    running: int
    waiting: int
    blocks_held: int
    blocks_shared: int
    blocks_cached: int
    blocks_pinned: int
    served: float
    blocks_leased: int = 0
    lease_block_seconds: float = 0.0
    leases_broken: int = 0
    leases_cut: int = 0
    leases_since: float = 0.0


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot from inside the engine loop; counters count from the start.

    Of the `preemptions`, `recomputed` requests were dropped to be computed again, the others were
    swapped. `swapped_out` and `swapped_in` are blocks copied to the host and back, for whatever
    reason; `prompt_tokens` are those of requests when they were first admitted, and what these
    found then: `cached_tokens`, of which some were in the host tier (`host_hit_blocks`) or inside
    of blocks (`in_block_tokens`).
    """

    engine: str = ""
    """Which one has counted: one that is started again is another one."""
    running: int
    waiting: int
    queue_seconds: float = 0.0
    """To compute what is left of the prompts that it has accepted, as if nothing of those that wait
    were cached; 0 until steps have shown what a token takes."""
    prefill_tokens_per_s: float = 0.0
    """Of the beginning of a prompt; 0: not known yet."""
    blocks_total: int
    blocks_in_use: int
    blocks_cached: int
    peak_blocks_in_use: int
    steps: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    preemptions: int
    forks: int
    """Sequences that began as others of their request, in the same blocks."""
    copied_blocks: int
    """Shared blocks that were copied because a sequence wrote into them."""
    invariant_violations: int
    blocks_pinned: int = 0
    blocks_leased: int = 0
    lease_block_seconds: float = 0.0
    leases_broken: int = 0
    leases_cut: int = 0
    host_blocks_total: int = 0
    host_blocks_used: int = 0
    recomputed: int = 0
    swapped_out: int = 0
    swapped_in: int = 0
    host_hit_blocks: int = 0
    in_block_tokens: int = 0
    spared_keys: int = 0
    """Keys that a layer's attention did not read again for sequences that share them."""
    drafted_tokens: int = 0
    """Guesses that were verified, several in a step."""
    accepted_tokens: int = 0
    """Of these: the ones that were right."""
    kept_files: int = 0
    """On disk, with blocks that are kept over a restart."""
    kept_bytes: int = 0
    restored_blocks: int = 0
    """Read from there."""
    tenants: dict[str, TenantStats] = {}
    reuse: list[ReusePoint] = []
    """By size of the pool, smaller and larger ones than it is."""
    plan_seconds: float = 0.0
    """For which the loop has decided what steps compute."""
    compute_seconds: float = 0.0
    """For which steps were computed, from their start or the end of the one before."""
    commit_seconds: float = 0.0
    """For which the loop has taken their tokens over."""


COUNTERS: Final = (
    "steps",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "preemptions",
    "recomputed",
    "swapped_out",
    "swapped_in",
    "host_hit_blocks",
    "in_block_tokens",
    "spared_keys",
    "drafted_tokens",
    "accepted_tokens",
    "forks",
    "copied_blocks",
    "restored_blocks",
    "lease_block_seconds",
    "leases_broken",
    "leases_cut",
    "invariant_violations",
    "plan_seconds",
    "compute_seconds",
    "commit_seconds",
)
"""Of `EngineStats`, what only grows while an engine runs."""


class EngineError(Exception):
    """The engine could not serve this call."""


class RequestRefused(EngineError):
    """The request can never be served; `param` names the offending part of `EngineRequest`."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


class EngineUnavailable(EngineError):
    """The engine is not running (starting, crashed, or closed) or does not answer."""


class UnsupportedModel(EngineError):
    """The model cannot be served from paged KV memory; the message says why."""


class EngineBroken(EngineError):
    """Step after step has failed, or can only fail: what computes them has to be started anew."""


class StepOutOfMemory(EngineError):
    """A step needs more memory for its computation than there is; a smaller one may do.

    Raised by what computes steps (`engine.run.steps.Runner`), which has freed what the step had
    allocated. Blocks that the step was to write hold nothing of use.
    """
