"""Grammars are compiled beside the loop, kept for their namespace, and fail alone."""

import json
import random
from concurrent.futures import Future
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from msgspec import structs

from engine.api import BeamParams, EngineRequest, Grammar, RequestRefused, TokenDelta
from engine.assembly.parts import Parts
from engine.constraint.masks import Masks
from engine.grammar import grammars as module
from engine.grammar.compiled import CompiledGrammar
from engine.grammar.grammars import Grammars
from engine.grammar.source import problem_of
from engine.grammar.vocabulary import load_vocabulary
from engine.sequences.plan import Draw
from engine.sequences.sequence import Sequence
from engine.serve.core import EngineCore
from engine.validation import MAX_DEFINITIONS, MAX_GRAMMAR_BYTES, check_request
from tests.engine.grammar.constrained import PICK, constraining, save, start
from tests.engine.run.test_graphs import load
from tests.engine.simulated_model import EOS, random_prompt
from tests.engine.simulation import make_request, run_to_end, simulated_core

UNCLOSED = Grammar(kind="regex", source="(a")


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    folder = tmp_path_factory.mktemp("grammars")
    save(folder)
    return load(folder, num_blocks=60)


def constrained(name: str, grammar: Grammar, count: int = 12, **fields: object) -> EngineRequest:
    return make_request(name, random_prompt(random.Random(1), 20), count, grammar=grammar, **fields)


def to_end(core: EngineCore) -> list[TokenDelta]:
    deltas = []
    while not core.is_idle:
        deltas += core.step()
        core.scheduler.check()
    return deltas


def test_what_cannot_be_compiled_ends_its_own_request(parts: Parts) -> None:
    core = constraining(parts)
    core.submit(constrained("bad", UNCLOSED, num_sequences=2))
    core.submit(constrained("good", PICK))
    deltas = to_end(core)
    bad = [delta for delta in deltas if delta.request_id == "bad"]
    assert [delta.finish_reason for delta in bad] == ["error", "error"]
    assert bad[0].error is not None
    assert "cannot be compiled" in bad[0].error
    assert any(delta.finish_reason == "stop" for delta in deltas)


def test_a_grammar_that_needs_a_control_token_fails_where_it_does(parts: Parts) -> None:
    core = constraining(parts)
    forged = Grammar(kind="lark", source='start: "ab" <|im_end|> "cd"')
    start(core, [constrained("bad", forged, 20), constrained("good", PICK, 20)])
    deltas = to_end(core)
    last = [delta for delta in deltas if delta.request_id == "bad"][-1]
    assert last.finish_reason == "error"
    assert "no token" in str(last.error)
    assert not any(2 in delta.token_ids for delta in deltas)
    assert any(one.finish_reason == "stop" for one in deltas if one.request_id == "good")


@pytest.mark.parametrize("runs_ahead", [False, True])
def test_too_much_work_for_a_mask_ends_its_own_request(
    parts: Parts, runs_ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.constraint.follower._MOST_UNUSUAL_SECONDS", -1.0)
    core = constraining(parts, runs_ahead=runs_ahead)
    start(core, [constrained("bad", PICK), make_request("good", [5, 6, 7])])
    deltas = to_end(core)
    assert [d.finish_reason for d in deltas if d.request_id == "bad"] == ["error"]
    assert sum(len(d.token_ids) for d in deltas if d.request_id == "good") == 8


def test_a_grammar_is_kept_for_its_namespace_alone(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = []

    def compiling(grammar: Grammar, vocabulary: object) -> CompiledGrammar:
        compiled.append(grammar)
        return CompiledGrammar(grammar, vocabulary)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "CompiledGrammar", compiling)
    core = constraining(parts)
    for name in ("one", "again"):
        start(core, [constrained(name, PICK)])
        run_to_end(core)
    assert len(compiled) == 1
    start(core, [constrained("other tenant", PICK, tenant="b")])
    start(core, [constrained("other user", PICK, user="u")])
    assert len(compiled) == 3
    run_to_end(core)
    core.forget_tenant("a")
    start(core, [constrained("anew", PICK), constrained("kept", PICK, tenant="b")])
    assert len(compiled) == 4
    run_to_end(core)


def test_what_is_kept_is_bounded(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_KEPT", 3)
    assert parts.vocabulary is not None
    grammars = Grammars(parts.vocabulary)
    for number in range(9):
        grammar = Grammar(kind="regex", source="a" * (number + 1))
        grammars.submit(constrained(str(number), grammar))
        assert len(grammars._kept) == min(number + 1, 3)
    monkeypatch.setattr(module, "_MOST_KEPT_BYTES", 25)
    grammars.submit(constrained("long", Grammar(kind="regex", source="b" * 20)))
    assert len(grammars._kept) == 1
    while grammars:
        assert all(one.error is None for one in grammars.ready(1.0))


def test_what_waits_for_its_grammar_can_be_aborted(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    never: Future[CompiledGrammar] = Future()
    monkeypatch.setattr(Grammars, "_future", lambda self, request: never)
    core = constraining(parts)
    core.submit(constrained("r", PICK, num_sequences=3))
    assert not core.is_idle
    assert core.step() == []
    (delta,) = core.abort("r", 1)
    assert (delta.index, delta.finish_reason) == (1, "aborted")
    assert core.abort("r", 1) == []
    assert [delta.index for delta in core.abort("r")] == [0, 2]
    assert core.is_idle
    assert core.abort("r") == []


def test_what_nobody_waits_for_is_not_compiled(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert parts.vocabulary is not None
    monkeypatch.setattr(module, "_THREADS", 1)
    grammars, held = Grammars(parts.vocabulary), Event()
    grammars._lanes.submit("a", held.wait)  # type: ignore[arg-type]
    for name in ("one", "two"):
        grammars.submit(constrained(name, PICK))
    (future,) = grammars._kept.values()
    grammars.abort("one", None)
    assert not future.cancelled()
    grammars.abort("two", None)
    assert future.cancelled()
    grammars.submit(constrained("anew", PICK))
    held.set()
    (anew,) = grammars.ready(60.0)
    assert anew.grammar is not None


def test_a_step_beyond_the_end_does_not_spend_the_grammar(parts: Parts) -> None:
    assert parts.vocabulary is not None
    grammar = CompiledGrammar(Grammar(kind="regex", source="ab"), parts.vocabulary)
    core = simulated_core()
    core.scheduler.add(constrained("r", PICK), grammar)
    (group,) = core.scheduler.lifecycle.live.values()
    (sequence,) = group.sequences
    masks = Masks(parts.vocabulary)
    for token in (*parts.vocabulary.tokenizer.tokenize_str("ab"), EOS):
        sequence.append(token)
        masks.of([Draw(sequence)], {})
    masks.of([Draw(sequence)], {sequence: EOS})
    assert not grammar.is_spent


def test_an_undone_step_is_forgotten_by_the_matcher(parts: Parts) -> None:
    assert parts.vocabulary is not None
    masks = Masks(parts.vocabulary)
    request = constrained("r", Grammar(kind="regex", source="ab|cd"))
    core = simulated_core()
    core.scheduler.add(request, CompiledGrammar(PICK, parts.vocabulary))
    (group,) = core.scheduler.lifecycle.live.values()
    (sequence,) = group.sequences
    sequence.grammar = CompiledGrammar(request.grammar, parts.vocabulary)  # type: ignore[arg-type]
    a, c = (parts.vocabulary.tokenizer.tokenize_str(letter)[0] for letter in "ac")

    def allowed(newest: dict[Sequence, int]) -> bytes:
        found = masks.of([Draw(sequence)], newest)
        assert found is not None
        assert not found.failures
        return found.words.tobytes()

    first = allowed({})
    behind_a = allowed({sequence: a})
    assert allowed({}) == first, "the step that drew it was undone"
    behind_c = allowed({sequence: c})
    assert behind_c not in (first, behind_a)
    sequence.append(a)  # another one than the step that was undone had drawn
    assert allowed({}) == behind_a


def test_the_door_refuses_what_cannot_be_held_to_a_grammar(parts: Parts) -> None:
    info = parts.info
    assert info.has_grammars
    request = constrained("r", PICK)
    check_request(request, info)
    with pytest.raises(RequestRefused, match="cannot be held"):
        check_request(request, structs.replace(info, has_grammars=False))
    with pytest.raises(RequestRefused, match="beams"):
        check_request(structs.replace(request, beam=BeamParams(num_beams=2)), info)
    long = Grammar(kind="regex", source="é" * (MAX_GRAMMAR_BYTES // 2 + 1))
    with pytest.raises(RequestRefused, match="bytes"):
        check_request(structs.replace(request, grammar=long), info)
    many = Grammar(kind="lark", source="start: a\n" + "a: A\n" * MAX_DEFINITIONS)
    with pytest.raises(RequestRefused, match="rules and terminals"):
        check_request(structs.replace(request, grammar=many), info)
    longer = structs.replace(request.sampling, min_tokens=2)
    with pytest.raises(RequestRefused, match="ends where"):
        check_request(structs.replace(request, sampling=longer), info)
    endless = structs.replace(request.sampling, stop_token_ids=())
    with pytest.raises(RequestRefused, match="end tokens") as refused:
        check_request(structs.replace(request, sampling=endless), info)
    assert refused.value.param == "grammar"


def test_a_folder_without_tokens_or_an_end_has_no_vocabulary(tmp_path: Path, parts: Parts) -> None:
    assert load_vocabulary(tmp_path, 1000, (3,)) is None
    assert load_vocabulary(Path(parts.config.model_path), 1000, ()) is None
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "Runes", "vocab": {}}}')
    assert load_vocabulary(tmp_path, 1000, (3,)) is None


def test_a_padded_tokenizer_and_one_larger_than_the_model_are_read(
    tmp_path: Path, parts: Parts
) -> None:
    document = json.loads((Path(parts.config.model_path) / "tokenizer.json").read_text())
    document["truncation"] = {
        "direction": "Right",
        "max_length": 3,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    vocabulary = load_vocabulary(tmp_path, 900, (3,))
    assert vocabulary is not None
    assert len(vocabulary.tokenizer.tokenize_str("abcdef")) == 6
    bits = np.unpackbits(vocabulary.drawable(()).view(np.uint8), bitorder="little")
    assert bits[:4].tolist() == [0, 0, 0, 1]
    assert bits[4:900].sum() == 895, "all but the byte FF, which is in no text"
    assert not bits[900:].any()


@pytest.mark.parametrize(
    ("kind", "source", "problem"),
    [
        ("regex", "(a", "unclosed group"),
        ("regex", "a{2}", None),
        ("lark", 'begin: "a"', "start"),
        ("lark", 'start: "a" | "b"', None),
        ("json_schema", '{"type": "widget"}', "widget"),
        ("json_schema", '{"not": {}}', "not"),
        ("json_schema", "[" * 2000, "nested too deeply"),
        ("json_schema", '{"type": "object"}', None),
        (
            "lark",
            r"start: A" + "\n" + r"A: /.*a.{40}/ & /.*b.{40}/ & ~/.*c.{40}/",
            "too many states",
        ),
    ],
)
def test_problems_are_told_before_a_model_is_asked(
    kind: str, source: str, problem: str | None
) -> None:
    found = problem_of(Grammar(kind=kind, source=source))  # type: ignore[arg-type]
    assert found == problem if problem is None else problem in str(found)
