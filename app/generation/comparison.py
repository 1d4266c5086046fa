"""Why a prompt was found in the cache, or was not, beside an earlier response of the tenant's.

What both have in common is known before the request runs; what of that was found, behind it. So is
what the pool says of blocks that are gone: once they are computed again it says nothing of it.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace
from functools import partial
from itertools import dropwhile, takewhile, zip_longest
from typing import Final

from msgspec import UNSET

from app.prompt.breakpoints import num_common
from app.prompt.conversation import Prompt
from app.prompt.history import History, SocketHistory, Turn
from app.prompt.picture_style import Shown
from app.request.segments import Segment, Segments
from app.wire.prompt_cache import (
    CacheDetails,
    CacheDiagnostics,
    CacheHit,
    CacheMiss,
    ComparisonNotFound,
    DiagnosticsUnavailable,
    MissReason,
    OwnReason,
)
from app.workers import Workers
from engine.api import BlockFate, EngineError, EngineInfo, EngineRequest
from engine.blocks.hashing import block_hashes, extras_for
from engine.client import EngineClient
from tenants.errors import StoreUnavailable

_REASONS: Final[dict[Segment, MissReason]] = {
    "model": "model_changed",
    "key": "prompt_cache_key_changed",
    "tools": "tools_changed",
    "text_format": "text_format_changed",
    "effort": "reasoning_effort_changed",
    "verbosity": "verbosity_changed",
    "context": "context_compacted",
    "service_tier": "service_tier_changed",
}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What a prompt and a response's have in common, before the prompt is computed.

    All of the `changed` differs, and so do the namespaces where an `own` reason says so. They part
    for a `reason` behind `reusable` tokens (`None`: these are nobody's to compare). Of these
    `wanted` may be found, in blocks of `block_size`, and `kept` were left to be found. `gone` is
    what is known of the first block of them that is not there; where it lies in another namespace
    than this prompt's, it `is_elsewhere`.
    """

    changed: list[MissReason]
    reason: MissReason | None = None
    own: OwnReason | None = None
    reusable: int | None = None
    wanted: int = 0
    kept: int = 0
    block_size: int = 1
    is_elsewhere: bool = False
    gone: BlockFate | None = None
    stateless: int = 0
    """Blocks from there on whose keys are there, and no state behind them."""

    def diagnosis(self, prompt_tokens: int, cached_tokens: int) -> CacheDiagnostics:
        """What came of it, once so many tokens were found."""
        details = CacheDetails(changed=self.changed)
        if self.own is not None:
            details.reason = self.own
        elif self.reusable is not None:
            self._explain(details, cached_tokens)
        if self.reason is not None:
            return CacheMiss(
                reason=self.reason,
                cache_missed_tokens=prompt_tokens - (self.reusable or cached_tokens),
                comparison_reusable_tokens=UNSET if self.reusable is None else self.reusable,
                details=details,
            )
        if details.reason is UNSET:
            return CacheHit(details=details)
        return DiagnosticsUnavailable(details=details)

    def _explain(self, details: CacheDetails, cached_tokens: int) -> None:
        """Why less was found than both have in common, if it is less by a block."""
        if cached_tokens >= min(self.wanted, self._full(self.wanted) or self.wanted):
            return
        if self.wanted < self.block_size:
            details.reason = "prefix_shorter_than_block"
        elif self.is_elsewhere:
            details.reason = "namespace_changed"
        elif cached_tokens >= self._full(self.kept):
            details.reason = "not_kept"
        elif self.stateless:
            details.reason = "no_state"
            details.keys_tokens = self.stateless * self.block_size
        elif self.gone is None or self.gone.state == "present":
            details.reason = "unknown"
        else:
            details.reason = self.gone.state
            if self.gone.state == "evicted":
                details.evicted_at = int(time.time() - self.gone.seconds_ago)
                details.evicted_by = self.gone.why or UNSET

    def _full(self, tokens: int) -> int:
        """So many of them lie in full blocks."""
        return tokens - tokens % self.block_size


NOT_FOUND: Final = ComparisonNotFound()
UNAVAILABLE: Final = DiagnosticsUnavailable()


class Comparisons:
    """Compares prompts that are about to be computed with the responses that their tenants name."""

    def __init__(self, history: History, engine: EngineClient, workers: Workers) -> None:
        self._history = history
        self._engine = engine
        self._workers = workers

    async def compare(
        self,
        response_id: str,
        prompt: Prompt,
        asked: EngineRequest,
        on_socket: SocketHistory | None,
    ) -> Comparison | CacheDiagnostics:
        """What both have in common, or what is to be told already."""
        tenant = asked.tenant
        turn = on_socket.load(response_id) if on_socket is not None else None
        try:
            turn = turn or await self._history.load(tenant, response_id)
        except StoreUnavailable:
            return UNAVAILABLE
        if turn is None:
            return NOT_FOUND
        if not turn.packed_ids or turn.segments is None or prompt.segments is None:
            return UNAVAILABLE
        if asked.cache.up_to == 0:
            return DiagnosticsUnavailable(details=CacheDetails(reason="not_asked"))
        info = self._engine.info
        work = partial(compared, turn, turn.segments, prompt, prompt.segments, info)
        comparison = await self._workers.run(tenant, work)
        if comparison.kept < info.block_size:
            return comparison
        hashes = await self._workers.run(tenant, partial(_hashes, asked, info, comparison.kept))
        try:
            fates = await self._engine.block_fates(hashes)
        except EngineError:
            return comparison
        missing = list(dropwhile(lambda fate: fate.state == "present", fates))
        stateless = len(list(takewhile(lambda fate: fate.state == "no_state", missing)))
        return replace(comparison, gone=next(iter(missing), None), stateless=stateless)


def _hashes(asked: EngineRequest, info: EngineInfo, tokens: int) -> list[bytes]:
    """What the full blocks of the first tokens of a prompt are found by."""
    extras = extras_for(
        info.hash_extras, info.rotary_switch, len(asked.prompt), asked.adapter, asked.pictures
    )
    return block_hashes(asked.prompt[:tokens], info.block_size, asked.namespaces, extras)


def compared(
    turn: Turn, before: Segments, prompt: Prompt, now: Segments, info: EngineInfo
) -> Comparison:
    """A prompt beside an earlier turn."""
    if not now.same(before, "secret"):
        return Comparison(changed=[], own="namespace_changed")
    changed = [reason for one, reason in _REASONS.items() if not now.same(before, one)]
    if not now.same(before, "model"):
        return Comparison(changed=changed, reason="model_changed")
    if not now.same(before, "private"):
        if not now.same(before, "key"):
            return Comparison(changed=changed, reason="prompt_cache_key_changed")
        same_user = now.same(before, "end_user")
        own: OwnReason = "namespace_changed" if same_user else "end_user_changed"
        return Comparison(changed=changed, own=own)
    earlier = turn.ids
    reusable = _num_common(turn, earlier, prompt)
    parted = reusable < min(before.said_tokens, now.said_tokens)
    reason = _reason(before, now) if parted else None
    if reason == "input_changed":
        changed.append(reason)
    # Of an answer the last token was never computed, and of a prompt it always is.
    computed = len(earlier) - (not turn.is_unanswered)
    wanted = min(reusable, computed, len(prompt.ids) - 1, _bound(now))
    return Comparison(
        changed=changed,
        reason=reason,
        reusable=reusable,
        wanted=wanted,
        kept=min(wanted, _bound(before)),
        block_size=info.block_size,
        is_elsewhere=not now.same(before, "shared"),
    )


def _num_common(turn: Turn, earlier: list[int], prompt: Prompt) -> int:
    """How many tokens both begin with, of which equal ones may show different pictures."""
    most = num_common(earlier, prompt.ids)
    pairs = zip_longest(turn.pictures, prompt.pictures)
    parted = (one or other for one, other in pairs if not _same(one, other))
    first = next(parted, None)
    return most if first is None else min(most, first.start)


def _same(one: Shown | None, other: Shown | None) -> bool:
    return (
        one is not None
        and other is not None
        and (one.digest, one.start) == (other.digest, other.start)
    )


def _bound(segments: Segments) -> int:
    return sys.maxsize if segments.up_to is None else segments.up_to


def _reason(before: Segments, now: Segments) -> MissReason:
    """Why two prompts part: the first that differs, in the order in which prompts have it."""
    if not now.same(before, "effort") and not now.same(before, "effort_text"):
        return "reasoning_effort_changed"
    # A summary may be what a conversation begins with.
    if not now.same(before, "system") and now.same(before, "context"):
        return "input_changed"
    if not now.same(before, "tools"):
        return "tools_changed"
    return "input_changed" if now.same(before, "context") else "context_compacted"
