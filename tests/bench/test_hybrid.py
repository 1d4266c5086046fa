"""Which states each rule keeps, on small traces where the answer is known, and the bench itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path

import pytest

from bench import __main__ as cli
from bench.hybrid import report
from bench.hybrid.replay import replay
from bench.hybrid.rules.cache import Policy
from bench.hybrid.rules.declared import Ours
from bench.hybrid.rules.future import Future
from bench.hybrid.rules.intervals import EachInterval, LastOnly
from bench.hybrid.rules.marconi import Marconi
from bench.hybrid.rules.own import Own
from bench.hybrid.rules.policies import POLICIES
from bench.hybrid.shapes import BLOCK, QWEN, SHAPES, Shape
from bench.hybrid.traces.agents import agents
from bench.hybrid.traces.chats import chats
from bench.hybrid.traces.mooncake import mooncake
from bench.hybrid.traces.requests import Kind, Request, Trace, Tree, grow
from bench.hybrid.traces.texts import Shelf, Text
from bench.registry import BenchError

SMALL = Shape("small", key_bytes=1, state_bytes=10 * BLOCK, per_token=1.0, per_pair=0.0)
"""A state is as large as the keys of ten blocks."""
PLENTY = 10**9
Pieces = Sequence[tuple[Hashable, int]]
"""Names and blocks."""


class Script:
    """Requests, written down as pieces of whole blocks and one token that is always new."""

    def __init__(self) -> None:
        self._shelf = Shelf()
        self._requests: list[Request] = []

    def ask(
        self, prompt: Pieces, answer: Pieces = (), /, at: float | None = None, **places: int
    ) -> None:
        """Places are given in blocks; without any, a turn ends behind the answer."""
        text = self._text(self._shelf.empty, prompt)
        ran = self._text(text, answer)
        declared = {Kind(kind): depth for kind, depth in places.items()}
        if not declared:
            declared = {Kind.TURN: len(ran.blocks)}
        where = tuple(sorted((depth, kind) for kind, depth in declared.items()))
        when = float(len(self._requests)) if at is None else at
        self._requests.append(Request(when, 0, text.tokens + 1, ran.blocks, where))

    def tree(self) -> Tree:
        return grow(Trace("script", "here", self._requests))

    @staticmethod
    def _text(text: Text, pieces: Pieces) -> Text:
        for piece, blocks in pieces:
            text = text.then(piece, blocks * BLOCK)
        return text


def found(tree: Tree, policy: Policy) -> list[int]:
    """Blocks, by request."""
    return [policy.serve(one) for one in tree.served]


def two_turns() -> Tree:
    script = Script()
    script.ask([("question", 5)], [("answer", 3)])
    script.ask([("question", 5), ("answer", 3), ("then", 4)], [("more", 2)])
    return script.tree()


def three_behind_one_prompt(**places: int) -> Tree:
    script = Script()
    for number in range(3):
        script.ask([("system", 6), (number, 4)], [("answer", 2)], **places)
    return script.tree()


def test_models_have_the_bytes_that_their_makers_gave_them() -> None:
    qwen, granite = SHAPES
    assert (qwen.key_bytes, granite.key_bytes) == (20_480, 16_384)
    assert qwen.state_bytes == 30 * (32 * 128 * 128 * 4 + 8192 * 4 * 2)
    assert granite.state_bytes == 36 * (128 * 64 * 128 * 4 + 8448 * 4 * 2)
    assert 2 * 2e9 < qwen.per_token < 2 * 3e9, "3 billion parameters are active, with embeddings"
    assert 2 * 8e9 < granite.per_token < 2 * 9e9
    assert QWEN.operations(2_000) > 2 * QWEN.operations(1_000)


def test_texts_share_blocks_up_to_where_they_part() -> None:
    empty = Shelf().empty
    one = empty.then("a", 40).then("b", 30)
    same = empty.then("a", 40).then("b", 30)
    other = empty.then("a", 40).then("c", 30)
    assert one.blocks.tolist() == same.blocks.tolist()
    assert one.tokens == 70
    assert len(one.blocks) == 4
    assert [int(a == b) for a, b in zip(one.blocks, other.blocks, strict=True)] == [1, 1, 0, 0]


def test_the_tree_is_cut_where_texts_part_and_knows_what_could_be_found() -> None:
    tree = three_behind_one_prompt()
    assert [tree.end(one.path, one.best) for one in tree.served] == [0, 6, 6]
    assert tree.findable == 12 * BLOCK
    assert tree.num_blocks == 6 + 3 * (4 + 2)
    assert tree.touched_bytes(SMALL) == (tree.num_blocks + 30) * BLOCK


@pytest.mark.parametrize("name", POLICIES)
def test_nothing_is_found_beyond_the_last_state_and_memory_is_never_exceeded(name: str) -> None:
    tree = grow(chats(Path("none"), 30, 1, reasoning=False))
    total = tree.touched_bytes(SMALL)
    for capacity in (total // 50, total // 10, total):
        policy = POLICIES[name](tree, SMALL, capacity)
        for one in tree.served:
            assert policy.serve(one) <= tree.end(one.path, one.best)
            assert policy.used <= capacity


@pytest.mark.parametrize("name", sorted(set(POLICIES) - {"blocks of 528"}))
def test_a_second_turn_goes_on_behind_the_answer_of_the_first(name: str) -> None:
    tree = two_turns()
    assert found(tree, POLICIES[name](tree, SMALL, PLENTY)) == [0, 8]


@pytest.mark.parametrize(("interval", "hit"), [(1, 6), (4, 4), (8, 0)])
def test_an_interval_finds_a_shared_prompt_in_whole_intervals(interval: int, hit: int) -> None:
    tree = three_behind_one_prompt()
    assert found(tree, EachInterval(SMALL, PLENTY, interval)) == [0, hit, hit]


def test_the_last_block_alone_finds_no_shared_prompt() -> None:
    tree = three_behind_one_prompt()
    assert found(tree, LastOnly(tree, SMALL, PLENTY)) == [0, 0, 0]


def test_what_has_waited_longest_goes_first() -> None:
    script = Script()
    for name in "abacba":
        script.ask([(name, 4)])
    tree = script.tree()
    two = 2 * (4 * BLOCK + SMALL.state_bytes)
    assert found(tree, LastOnly(tree, SMALL, two)) == [0, 0, 4, 0, 0, 0]


def test_marconi_keeps_a_state_where_prompts_part_once_a_second_one_comes() -> None:
    tree = three_behind_one_prompt()
    marconi = Marconi(tree, SMALL, PLENTY)
    assert found(tree, marconi) == [0, 0, 6]
    assert len(marconi.states) == 3 + 1, "one behind each answer, and where they part"


def test_marconi_does_not_know_where_a_turn_goes_on_that_drops_its_reasoning() -> None:
    script = Script()
    history: list[tuple[Hashable, int]] = [("system", 2)]
    for turn in range(3):
        history = [*history, (("question", turn), 3)]
        place = sum(blocks for _, blocks in history)
        script.ask(history, [(("reasoning", turn), 5), (("answer", turn), 2)], turn=place)
        history = [*history, (("answer", turn), 2)]
    tree = script.tree()
    assert found(tree, Marconi(tree, SMALL, PLENTY)) == [0, 0, 5]
    assert found(tree, Ours(tree, SMALL, PLENTY)) == [0, 5, 10]
    assert found(tree, LastOnly(tree, SMALL, PLENTY)) == [0, 0, 0]


def test_marconi_does_not_give_up_a_node_with_two_children() -> None:
    script = Script()
    for name in "abcdefgh":
        script.ask([("system", 6), (name, 4)])
    tree = script.tree()
    room = (6 + 2 * 4) * BLOCK + 3 * SMALL.state_bytes
    assert found(tree, Marconi(tree, SMALL, room, alpha=0.0)) == [0, 0, 6, 6, 6, 6, 6, 6]


def test_marconi_with_a_large_alpha_keeps_what_saves_most_for_its_bytes() -> None:
    script = Script()
    script.ask([("long", 40)])
    for name in "abcd":
        script.ask([(name, 2)])
    script.ask([("long", 40), ("on", 1)])
    tree = script.tree()
    room = 45 * BLOCK + 2 * SMALL.state_bytes
    assert found(tree, Marconi(tree, SMALL, room, alpha=0.0))[-1] == 0
    assert found(tree, Marconi(tree, SMALL, room, alpha=2.0))[-1] == 40


def test_marconi_tunes_alpha_on_what_it_has_seen() -> None:
    script = Script()
    for number in range(60):
        script.ask([("long", 40), (number, 1)] if number % 6 == 0 else [(number, 2)])
    tree = script.tree()
    marconi = Marconi(tree, SMALL, 50 * BLOCK + 3 * SMALL.state_bytes)
    found(tree, marconi)
    assert marconi.alpha > 0


@pytest.mark.parametrize("policy", [Ours, Own])
def test_a_declared_prompt_is_found_by_the_second_request_already(
    policy: Callable[[Tree, Shape, int], Policy],
) -> None:
    tree = three_behind_one_prompt(prompt=6, turn=12)
    assert found(tree, policy(tree, SMALL, 10**5)) == [0, 6, 6]


@pytest.mark.parametrize("policy", [Ours, Own])
def test_what_nobody_declared_is_noticed_by_the_request_that_parts(
    policy: Callable[[Tree, Shape, int], Policy],
) -> None:
    tree = three_behind_one_prompt()
    assert found(tree, policy(tree, SMALL, 10**5)) == [0, 0, 6]


def test_keys_behind_the_last_place_are_given_back_at_once() -> None:
    script = Script()
    script.ask([("question", 5)], [("reasoning", 30)], turn=5)
    tree = script.tree()
    ours = Ours(tree, SMALL, PLENTY)
    found(tree, ours)
    assert ours.used == 5 * BLOCK + SMALL.state_bytes


def three_turns() -> Script:
    script = Script()
    history: list[tuple[Hashable, int]] = []
    for turn in range(3):
        history = [*history, (("question", turn), 2)]
        script.ask(history, [(("answer", turn), 2)])
        history = [*history, (("answer", turn), 2)]
    return script


def test_the_end_of_a_turn_replaces_the_one_before_it() -> None:
    script = three_turns()
    script.ask([("stranger", 2)])
    tree = script.tree()
    room = (12 + 2) * BLOCK + 2 * SMALL.state_bytes
    ours = Ours(tree, SMALL, room)
    assert found(tree, ours) == [0, 4, 8, 0]
    assert {tree.ends[run] for run in ours.states} == {12, 2}


def test_the_end_of_a_turn_on_which_another_answer_leans_is_not_replaced() -> None:
    script = Script()
    first: Pieces = [("question", 2), ("answer", 2)]
    script.ask([("question", 2)], [("answer", 2)])
    script.ask([*first, ("then", 2)], [("one", 2)])
    script.ask([*first, ("else", 2)], [("other", 2)])
    script.ask([*first, ("else", 2), ("other", 2), ("on", 2)], [("end", 2)])
    script.ask([*first, ("third", 2)])
    tree = script.tree()
    ours = Ours(tree, SMALL, PLENTY)
    assert found(tree, ours) == [0, 4, 4, 8, 4]
    assert 4 in {tree.ends[run] for run in ours.states}


def test_the_future_keeps_nothing_that_nobody_comes_back_to() -> None:
    script = three_turns()
    script.ask([("stranger", 2)])
    tree = script.tree()
    future = Future(tree, SMALL, PLENTY)
    assert found(tree, future) == [0, 4, 8, 0]
    assert future.used == 0


def test_the_future_gives_up_what_is_needed_furthest_ahead() -> None:
    script = Script()
    for name in "abba":
        script.ask([(name, 4)])
    tree = script.tree()
    one = 4 * BLOCK + SMALL.state_bytes
    assert found(tree, Future(tree, SMALL, one)) == [0, 0, 4, 0]
    assert found(tree, Future(tree, SMALL, 2 * one)) == [0, 0, 4, 4]


def test_first_tokens_wait_for_prompts_that_came_before() -> None:
    script = Script()
    script.ask([("a", 4)], at=0.0)
    script.ask([("b", 4)], at=0.0)
    script.ask([("a", 4)], at=100.0)
    tree = script.tree()
    outcome = replay(tree, SMALL, LastOnly(tree, SMALL, PLENTY))
    each = 100 * 0.8 / 3
    assert outcome.found == 4 * BLOCK
    assert outcome.first_token_seconds == pytest.approx([each, 2 * each, each / 65])


def test_mooncakes_answers_are_those_that_a_later_prompt_goes_on_from(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    rows = [(0, 1_200, 100, [0, 1, 2]), (1_000, 1_500, 50, [0, 1, 3]), (2_000, 1_200, 9, [0, 4, 5])]
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    lines = [json.dumps(dict(zip(names, row, strict=True))) for row in rows]
    path.write_text("\n".join(lines))
    tree = grow(mooncake(path, 10, 0))
    assert [tree.end(one.path, one.best) for one in tree.served] == [
        0,
        1_300 // BLOCK,
        512 // BLOCK,
    ]
    path.write_text(lines[0] + "\n{}")
    with pytest.raises(BenchError, match="line 2"):
        mooncake(path, 10, 0)


def test_an_agents_retries_find_the_breakpoint_and_its_sub_agents_the_prompt() -> None:
    tree = grow(agents(3, 0))
    asked = [one.request.prompt_tokens for one in tree.served]
    assert tree.served == sorted(tree.served, key=lambda one: one.request.at)
    assert len(asked) > 20
    everything = sum(found(tree, Ours(tree, QWEN, 10**15)))
    assert everything * BLOCK > 0.99 * tree.findable


def test_the_bench_prints_every_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "figures.json"
    small = ["--requests", "60", "--conversations", "20", "--sessions", "1"]
    files = ["--trace", str(tmp_path / "none"), "--questions", str(tmp_path / "none")]
    parts = ["--parts", "policy", "--pictures", str(tmp_path)]
    command = ["bench", "hybrid", "--json", str(out), *parts, *small, *files]
    monkeypatch.setattr("sys.argv", command)
    assert cli.main() == 0
    figures = json.loads(out.read_text())["figures"]
    assert figures.keys() == report.FIGURES.keys()
    assert min(figures.values()) > 0, "a pool was found where each rule finds something"
    assert (tmp_path / "hybrid-policy.png").stat().st_size > 10_000
