"""What a computed step means to its sequences: new tokens, ends, and blocks that are not needed.

And how steps are taken back that were not computed, or not to their end.
"""

from __future__ import annotations

from collections.abc import Collection

from engine.blocks.pins import Pins
from engine.schedule.lifecycle import Lifecycle
from engine.schedule.speculation import Speculation
from engine.schedule.verification import verify
from engine.sequences.beam import BeamSearch, Candidate
from engine.sequences.group import SequenceGroup
from engine.sequences.plan import News, Sampled, ScheduledChunk, StepPlan
from engine.sequences.sequence import Sequence


class Results:
    """Takes over what steps have drawn."""

    def __init__(self, lifecycle: Lifecycle, pins: Pins, speculation: Speculation | None) -> None:
        self._lifecycle = lifecycle
        self._pins = pins
        self._speculation = speculation

    def take(self, plan: StepPlan, sampled: Sampled) -> list[News]:
        """Take over a step, all of which has been computed; see `Scheduler.commit`."""
        news: list[News] = []
        row = num_told = 0
        for chunk in plan.chunks:
            told = range(num_told, num_told + len(chunk.scored))
            num_told = told.stop
            if told:
                news += self._score(chunk, told)
            for sequence in chunk.samplers:
                first, row = row, row + len(chunk.drafts) + 1
                if sequence.finish_reason is not None:
                    continue
                group = self._lifecycle.running[sequence.request_id]
                if group.search is not None:
                    candidates = sampled.candidates[first]
                    news += self._search(group, group.search, sequence, candidates)
                elif sequence.sampling.max_tokens == 0:
                    self._finish_prompt(sequence)
                    news.append(News(sequence))
                else:
                    count = self._take(group, sequence, chunk.drafts, first, sampled)
                    news.append(News(sequence, range(first, first + count)))
            for sequence in dict.fromkeys((chunk.sequence, *chunk.samplers)):
                if sequence.finish_reason is not None:
                    self._let_go(sequence)
        return news

    def _take(
        self,
        group: SequenceGroup,
        sequence: Sequence,
        drafts: tuple[int, ...],
        first: int,
        sampled: Sampled,
    ) -> int:
        """Take over the tokens of a sequence that draws, see `verify`; returns how many."""
        count, num_right = verify(sequence, drafts, first, sampled)
        prices, account = self._lifecycle.prices, self._lifecycle.account(group)
        account.charge(count * prices.output)
        if self._speculation is not None:
            if drafts:
                self._lifecycle.settle(group, sequence, num_right)
                self._speculation.verified(sequence, drafts, num_right)
            if sequence.finish_reason is not None:
                self._speculation.ended([sequence])
        return count

    def _score(self, chunk: ScheduledChunk, told: range) -> list[News]:
        """Take over a prompt's log-probabilities, told as those of a sequence that goes on: the one
        that has computed them may have been aborted meanwhile.
        """
        group = self._lifecycle.running.get(chunk.sequence.request_id)
        if group is None or chunk.sequence.request is not group.request:
            return []
        assert chunk.scored.start == group.num_scored, "each is told once, and none is left out"
        group.num_scored = chunk.scored.stop
        return [News(group.unfinished[0], scored=told)]

    def _let_go(self, sequence: Sequence) -> None:
        """Let a finished sequence give its blocks back, unless it has, or they are still needed."""
        group = self._lifecycle.running.get(sequence.request_id)
        if group is None or sequence not in group.sequences:
            return
        if self._is_done(group, sequence):
            sequence.table.leave_tail(sequence.token_ids, sequence.num_computed)
            self._lifecycle.drop(group, sequence)

    def _search(
        self,
        group: SequenceGroup,
        search: BeamSearch,
        beam: Sequence,
        candidates: list[Candidate],
    ) -> list[News]:
        """Take over a beam's candidates; the last beam of a step lets the search go on.

        Returns what the search has found once it is done, and a live beam after each other step.
        """
        group.candidates[beam] = candidates
        beams = list(group.sequences)
        if len(group.candidates) < len(beams):
            return []
        group.num_searched += group.width
        self._lifecycle.account(group).charge(len(beams) * self._lifecycle.prices.output)
        live = search.advance([group.candidates[beam] for beam in beams])
        group.candidates.clear()
        if search.is_done:
            told = group.found()
            self._lifecycle.end(group, "length")
        else:
            choices = [(beams[parent], token_id) for parent, token_id in live]
            told = self._lifecycle.reorder(group, choices)[:1]
        for sequence in told:
            sequence.num_searched = group.num_searched
        return list(map(News, told))

    def _finish_prompt(self, sequence: Sequence) -> None:
        """End a request for a prompt alone, which is to be kept if it names a pin."""
        sequence.finish_reason = "length"
        request, table = sequence.request, sequence.table
        if request.pin is None:
            return
        if not table.keeps(sequence.num_tokens):
            sequence.fail(f"{request.pin!r} cannot be pinned: nothing is cached")
            return
        blocks = table.findable()
        limit = request.share.max_pinned_blocks
        held = self._lifecycle.pool.in_blocks(
            self._pins.would_hold(request.pin, request.tenant, blocks)
        )
        if limit is None or held <= limit:
            self._pins.pin(request.pin, request.tenant, blocks)
        else:
            sequence.fail(
                f"{request.pin!r} cannot be pinned: the tenant's pinned prompts would hold {held} "
                f"blocks, more than its limit of {limit}"
            )

    def _is_done(self, group: SequenceGroup, sequence: Sequence) -> bool:
        """Whether nothing is left to compute for the sake of a sequence that has finished.

        Others of its group may build on what it computes. And where its last token, which is never
        computed for its own sake, is the last of its block, the sequence stays for one more step,
        which samples nothing: the conversation's next turn can then hit the block. Of sequences
        that share the block, so that it would have to be copied, only the last one does.
        """
        if sequence in group.prefill:
            return False
        table = sequence.table
        return not (
            table.keeps(sequence.num_tokens)
            and sequence.num_uncomputed > 0
            and sequence.num_tokens % self._lifecycle.block_size == 0
            and not table.writes_shared(sequence.num_tokens)
            and not table.has_outgrown(sequence.num_tokens)
        )


def undo(plans: list[StepPlan], lifecycle: Lifecycle, keep: Collection[int]) -> None:
    """Let everything wait that runs, as if it had never been planned in `plans`.

    What earlier steps have computed is found again, and so are the blocks `keep`: they are older.
    """
    for group in list(lifecycle.running.values()):
        for sequence in group.sequences:
            sequence.num_drawn = 0
        lifecycle.preempt(group, may_swap=False)
    # A slot's number is its first page, and what has no slot's number is nothing to forget.
    lost = {page for plan in plans for _, page in plan.transfers.swap_outs}
    for group in lifecycle.live.values():
        if group.saved is not None and not lost.isdisjoint(group.saved.slots.values()):
            lifecycle.forget_saved(group)
    lifecycle.transfers.abandon()
    lifecycle.tiers.host.forget(lost)
    findable = lifecycle.tiers.take_fresh().union(*(plan.findable for plan in plans))
    lifecycle.pool.forget(findable.difference(keep))
