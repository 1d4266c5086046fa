"""In which order blocks go where a model has recurrent states: the least worth first.

A hit ends at a state and needs all keys before it. So a state and the keys that only it makes use
of are one thing (`Places`): it is worth what is saved by going on there instead of at the state
before, by all who are likely to come, for its memory. Keys that no state behind them makes use of
go before all.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from enum import Enum, auto
from typing import Final, NamedTuple

from engine.api import Kind
from engine.blocks.eviction.places import Places


class Purpose(Enum):
    """What a state was left for."""

    PROMPT = auto()
    """A prompt's constant part ends, or all that may be found."""
    SAID = auto()
    """Others are said to go on here."""
    ASKED = auto()
    """All of a prompt but its last token: it is asked again."""
    PARTING = auto()
    """Prompts have parted here."""
    LAST = auto()
    """A sequence has ended here."""


_STRETCH: Final = 32
"""Blocks; where texts are long and states few, stretches without any are passed at once."""
_FOLLOWED: Final = (Purpose.SAID, Purpose.LAST)
"""Of these the next one in a text is for the same: who came back to the one comes to the other."""


class _Node:
    """A block of text: what of it can be found, and what goes on from it."""

    __slots__ = ("depth", "keys", "name", "num_after", "num_near", "parent", "start", "state")

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.parent: _Node | None = None
        self.depth = 1
        """How many blocks of text end with it."""
        self.start = self
        """The first one of its stretch: what goes on from there in `_STRETCH` blocks, every way."""
        self.num_near = 0
        """States in the stretch that starts here."""
        self.num_after = 0
        self.keys = -1
        """The block with its keys, or -1."""
        self.state: _State | None = None

    def follow(self, parent: _Node) -> None:
        """It is behind another one."""
        self.parent, self.depth = parent, parent.depth + 1
        parent.num_after += 1
        if self.depth - parent.start.depth < _STRETCH and not self.num_near:
            self.start = parent.start

    def put(self, state: _State | None) -> None:
        """This one can be found, or none."""
        self.start.num_near += (state is not None) - (self.state is not None)
        self.state = state

    def before(self) -> _Node | None:
        """The next one before it with a state."""
        found = self.parent
        while found is not None and found.state is None:
            found = found.parent if found.start.num_near else found.start.parent
        return found

    def alone(self, most: int) -> int:
        """Of so many blocks that end with it, those whose keys nothing else makes use of. Where the
        last stretch is alone, all are taken to be.
        """
        count, at = 0, self
        while count < most and at.num_after <= (count > 0):
            count += 1
            if at.parent is None or count == _STRETCH:
                return most
            at = at.parent
        return count

    @property
    def is_useless(self) -> bool:
        """Whether nothing makes use of its keys."""
        return not self.num_after and self.state is None


class _State(NamedTuple):
    block: int
    purpose: Purpose
    owner: str


class ByWorth:
    """An order like those of `engine.blocks.eviction.policy`, of a pool with states."""

    def __init__(self, kinds: Sequence[Kind], clock: Callable[[], float]) -> None:
        """The first of the `kinds` has the keys, one the states; `clock` tells seconds."""
        self._clock = clock
        (self._state_kind,) = (number for number, kind in enumerate(kinds) if kind.is_state)
        self._state_pages, self._key_pages = kinds[self._state_kind].pages, kinds[0].pages
        self._nodes: dict[bytes, _Node] = {}
        """By the hash of the block, which is the name of a place, too."""
        self._findable: dict[int, _Node] = {}
        """By the blocks with keys and states."""
        self._states: dict[int, bytes] = {}
        """Candidates that are states, and their keys."""
        self._others: OrderedDict[int, bytes] = OrderedDict()
        """All others, the least recently used one first."""
        self._useless: OrderedDict[int, None] = OrderedDict()
        """Of these, keys that no state makes use of."""
        self._places: Places[bytes] = Places()

    def __len__(self) -> int:
        """See `Order`."""
        return len(self._others) + len(self._states)

    def stored(
        self, block: int, key: bytes, kind: int, parent: bytes | None, owner: str, purpose: Purpose
    ) -> None:
        """See `Order`."""
        if kind == 0:
            node = self._node(key, parent)
            node.keys = block
        elif kind == self._state_kind:
            node = self._node(key[:-1], None)
            node.put(_State(block, purpose, owner))
        else:
            return
        self._findable[block] = node
        self._look(node)

    def lost(self, block: int) -> None:
        """See `Order`."""
        node = self._findable.pop(block, None)
        if node is None:
            return
        if node.keys == block:
            node.keys = -1
        else:
            node.put(None)
            if node.name in self._places:
                self._places.forget(node.name, next(self._before(node), None))
        self._look(node)
        self._tidy(node)

    def add(self, block: int, key: bytes, *, oldest: bool = False) -> None:
        """See `Order`."""
        node = self._findable.get(block)
        if node is not None and node.keys != block:
            self._states[block] = key
            self._offer(node, oldest=oldest)
            return
        self._others[block] = key
        if oldest:
            self._others.move_to_end(block, last=False)
        if node is not None:
            self._look(node)

    def remove(self, block: int) -> bytes:
        """See `Order`."""
        if block in self._others:
            self._useless.pop(block, None)
            return self._others.pop(block)
        self._places.withdraw(self._findable[block].name)
        return self._states.pop(block)

    def least(self) -> tuple[int, bool]:
        """See `Order`."""
        if self._useless or not self._states:
            return next(iter(self._useless or self._others)), bool(self._useless)
        state = self._nodes[self._places.least(self._clock(), self._gain)].state
        assert state is not None, "a place that is kept has one"
        return state.block, False

    def evict(self) -> int:
        """See `Order`."""
        block, _ = self.least()
        self.remove(block)
        return block

    def used_again(self, block: int) -> None:
        """See `Order`: who comes back is told by `came_back`."""

    def came_back(self, hashes: Sequence[bytes], num_found: int) -> list[int]:
        """See `Order`."""
        places, now = self._places, self._clock()
        known = (name for name in reversed(hashes) if name in places or places.remembers(name))
        if (name := next(known, None)) is not None:
            places.returned(name, now)
        places.learn(now)
        behind = enumerate(hashes[num_found:], num_found + 1)
        return [count for count, name in behind if places.remembers(name)]

    def candidates(self) -> dict[int, bytes]:
        """See `Order`."""
        names = {self._findable[block].name for block in self._states}
        assert self._places.offered() == names, "a state is not where it is kept"
        assert self._useless.keys() <= self._others.keys(), "what is useless is not up for eviction"
        after = Counter(id(node.parent) for node in self._nodes.values())
        near = Counter[int]()
        for node in self._nodes.values():
            near[id(node.start)] += node.state is not None
        for node in self._nodes.values():
            assert node.num_after == after[id(node)], "what goes on from a block is miscounted"
            assert node.num_near == near[id(node)], "states are miscounted"
            is_useless = node.keys in self._others and node.is_useless
            assert is_useless == (node.keys in self._useless), "keys of use go first"
        for block, node in self._findable.items():
            assert self._nodes[node.name] is node, "a block is of a text that is not known"
            state = None if node.state is None else node.state.block
            assert (node.keys == block) != (state == block), "keys and states are mixed up"
        return self._others | self._states

    def _node(self, name: bytes, parent: bytes | None) -> _Node:
        node = self._nodes.get(name)
        if node is None:
            node = self._nodes[name] = _Node(name)
        before = None if parent is None else self._nodes.get(parent)
        if before is not None and node.parent is None:
            node.follow(before)
            self._look(before)
        return node

    def _look(self, node: _Node) -> None:
        """Whether its keys are of use may have changed."""
        if node.keys in self._others and node.is_useless:
            self._useless[node.keys] = None
        else:
            self._useless.pop(node.keys, None)

    def _tidy(self, node: _Node) -> None:
        """Forget texts of which nothing is left."""
        left: _Node | None = node
        while left is not None and left.is_useless and left.keys < 0:
            del self._nodes[left.name]
            if left.parent is not None:
                left.parent.num_after -= 1
                self._look(left.parent)
            left = left.parent

    def _offer(self, node: _Node, *, oldest: bool) -> None:
        """A state may be given up, perhaps for the first time."""
        assert node.state is not None
        if node.name not in self._places:
            self._begin(node, node.state)
        self._places.offer(node.name)
        if oldest:
            self._places.replaced(node.name)

    def _begin(self, node: _Node, state: _State) -> None:
        """Keep a place, which those before it pass on to."""
        now, returns = self._clock(), 0
        for before in self._before(node):
            if state.purpose in _FOLLOWED and self._places.kind(before) == state.purpose:
                returns = max(returns, self._places.returns(before))
            if not self._places.passed(before, now):
                break
        self._places.add(node.name, state.purpose, state.owner, now, returns)

    def _before(self, node: _Node) -> Iterator[bytes]:
        """The places that are kept before a block, the nearest one first."""
        before = node.before()
        while before is not None:
            if before.name in self._places:
                yield before.name
            before = before.before()

    def _gain(self, name: bytes) -> float:
        """Blocks of text that need not be computed who go on there, a page that goes with it."""
        node = self._nodes[name]
        before = node.before()
        count = node.depth - (0 if before is None else before.depth)
        return count / (self._state_pages + self._key_pages * node.alone(count))
