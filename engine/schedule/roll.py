"""Which requests there are, and the blocks that each leans on: for operators who look at the wall.

Live requests are described when somebody asks. Of those that end, some are remembered while
somebody has asked lately, and no token of any. What one answer looks up is bounded.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from itertools import chain, islice
from typing import Final, Literal, NamedTuple

from msgspec import structs

from engine.api import ChainBreak, ChainPlace, RequestState, Roll
from engine.blocks.chains import Chains
from engine.blocks.lookup import usable
from engine.blocks.tiers import Tiers
from engine.schedule.reuse import ReuseCurve
from engine.sequences.group import Saved, SequenceGroup

_MOST_LIVE: Final = 64
_MOST_ENDED: Final = 32
_LOOKED_AT: Final = 1024
"""Of the live requests, the first ones: those that run or did are among these, mostly."""
_CELLS: Final = 8192
"""Told in one answer, about: two or three milliseconds of the engine's loop."""
_CELLS_OF_ONE: Final = 1024
_PATIENCE_SECONDS: Final = 10.0


class _Ended(NamedTuple):
    """A request that is over; where its blocks are now is looked up."""

    state: RequestState
    hashes: list[bytes]
    noted_at: float


class RollKeeper:
    """Tells of groups by the ids of their requests."""

    def __init__(
        self,
        tiers: Tiers,
        chains: Chains,
        reuse: ReuseCurve,
        live: Mapping[str, SequenceGroup],
        running: Mapping[str, SequenceGroup],
    ) -> None:
        """Of the groups that are `live` some are `running`."""
        self._tiers = tiers
        self._reuse = reuse
        self._clock = tiers.clock
        self._chains = chains
        self._live = live
        self._running = running
        self._asked: float | None = None
        self._ended: deque[_Ended] = deque(maxlen=_MOST_ENDED)

    def roll(self, cell: int | None = None) -> Roll:
        """Some of the requests: those that run or were preempted before those that wait; and where
        the block in a cell lies in chains.
        """
        self._lapse()
        self._asked = self._clock()
        groups = self._chosen()
        most = min(_CELLS_OF_ONE, _CELLS // max(1, len(groups) + len(self._ended)))
        live = [self._told(group, most) for group in groups]
        ended = [
            self._with_found(self._aged(one), one.hashes, most) for one in reversed(self._ended)
        ]
        return Roll(
            requests=live + ended,
            places=[] if cell is None else self._places(cell),
            gain_of_twice=self._reuse.gain_of_twice,
        )

    def _places(self, cell: int) -> list[ChainPlace]:
        pool, slots = self._tiers.pool, self._tiers.host
        books, index = (pool, cell) if cell < pool.num_pages else (slots, cell - pool.num_pages)
        if index >= books.num_pages:
            return []
        block_hash = books.chain_hash(books.block_on[index])
        return [] if block_hash is None else self._chains.places(block_hash)

    def note_end(self, group: SequenceGroup) -> None:
        """Remember a group that ends, and still has its blocks, if somebody wants to know."""
        self._lapse()
        if self._asked is not None:
            hashes = group.sequences[0].table.sealed_hashes()
            described = self._described(group, "finished", len(hashes))
            self._ended.append(_Ended(described, hashes[:_CELLS_OF_ONE], self._clock()))

    def _aged(self, ended: _Ended) -> RequestState:
        age = ended.state.age_seconds + self._clock() - ended.noted_at
        return structs.replace(ended.state, age_seconds=age)

    def _lapse(self) -> None:
        """Forget those that have ended, where nobody has asked for long."""
        if self._asked is not None and self._asked < self._clock() - _PATIENCE_SECONDS:
            self._asked = None
            self._ended.clear()

    def _chosen(self) -> list[SequenceGroup]:
        groups = list(islice(self._live.values(), _LOOKED_AT))
        groups.sort(key=self._is_new)
        return sorted(groups[:_MOST_LIVE], key=lambda group: group.arrival)

    def _is_new(self, group: SequenceGroup) -> bool:
        """Whether it has never run."""
        return not (group.was_preempted or group.request_id in self._running)

    def _told(self, group: SequenceGroup, most: int) -> RequestState:
        each = max(1, most // len(group.sequences))
        if group.request_id in self._running:
            lines = [blocks[:each] for blocks in group.blocks]
            described = self._described(group, "running", max(map(len, group.blocks)))
            return self._with_lines(described, lines, Counter(chain.from_iterable(lines)))
        state: Literal["preempted", "waiting"] = "preempted" if group.was_preempted else "waiting"
        if group.saved is not None:
            longest = max(len(one.rows[0]) for one in group.saved.outlines.values())
            lines = self._slots(group, group.saved, each)
            described = self._described(group, state, longest)
            return self._with_lines(described, lines, dict.fromkeys(chain(*lines), 1))
        first = group.sequences[0]
        described = self._described(group, state, -(-first.num_tokens // self._tiers.block_size))
        return self._with_found(described, first.table.known_hashes(most), most)

    def _slots(self, group: SequenceGroup, saved: Saved, each: int) -> list[list[int]]:
        """The cells of what a swapped group has left in the host tier."""
        first = self._tiers.pool.num_pages
        lines = (list(saved.outlines[one].names())[:each] for one in group.sequences)
        return [
            [first + saved.slots[name] for name in line if name in saved.slots] for line in lines
        ]

    def _with_found(self, state: RequestState, hashes: list[bytes], most: int) -> RequestState:
        """With the cells of the blocks with these hashes, as far as a hit could use them."""
        found = usable(self._tiers.pool, hashes[:most], self._tiers.block_size)
        slots = self._tiers.host.find(hashes[len(found) : most])
        first = self._tiers.pool.num_pages
        cells = [*chain.from_iterable(found), *(first + slot for slot in slots)]
        return self._with_lines(state, [cells], {})

    def _with_lines(
        self, state: RequestState, lines: list[list[int]], own: Mapping[int, int]
    ) -> RequestState:
        """With these cells, of which it holds its `own` so many times."""
        cells = set(chain.from_iterable(lines))
        num_shared = sum(self._num_references(cell) > own.get(cell, 0) for cell in cells)
        return structs.replace(state, lines=lines, num_shared=num_shared)

    def _num_references(self, cell: int) -> int:
        pool, slots = self._tiers.pool, self._tiers.host
        if cell < pool.num_pages:
            return pool.references[cell]
        return slots.references[cell - pool.num_pages]

    def _described(
        self,
        group: SequenceGroup,
        state: Literal["running", "waiting", "preempted", "finished"],
        num_blocks: int,
    ) -> RequestState:
        return RequestState(
            request_id=group.request_id,
            tenant=group.tenant,
            age_seconds=self._age(group),
            state=state,
            prompt_tokens=len(group.request.prompt),
            output_tokens=max(one.num_output_tokens for one in group.sequences),
            found_tokens=group.sequences[0].first_hit,
            broke=self._break(group),
            num_blocks=num_blocks,
            num_shared=0,
            lines=[],
        )

    def _age(self, group: SequenceGroup) -> float:
        return 0.0 if group.came_at is None else self._clock() - group.came_at

    def _break(self, group: SequenceGroup) -> ChainBreak | None:
        """Where its prompt was found no further, once that is known."""
        first, size = group.sequences[0], self._tiers.block_size
        found, table, missed = first.first_hit, first.table, group.missed
        if found is None:
            return None
        wanted = table.num_kept(first.num_prompt_tokens - 1)
        if not table.up_to:
            return ChainBreak(tokens=found, why="not_asked")
        if found >= wanted - wanted % size and found:
            return ChainBreak(tokens=found, why="prompt_ends")
        if wanted < size:
            return ChainBreak(tokens=found, why="prefix_shorter_than_block")
        if missed is not None and missed.state == "no_state":
            return ChainBreak(tokens=found, why="no_state", keys_tokens=group.alike - found)
        if missed is None:
            return ChainBreak(tokens=found, why="unknown")
        if missed.state == "present":
            return ChainBreak(tokens=found, why="not_used")
        if missed.state == "never_seen":
            return ChainBreak(tokens=found, why="never_seen")
        return ChainBreak(
            tokens=found,
            why=missed.state,
            evicted_by=missed.why,
            evicted_for=missed.by,
            seconds_ago=missed.seconds_ago + self._clock() - group.admitted_at,
        )
