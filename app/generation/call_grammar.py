"""The grammar of an answer that calls functions: of its calls, and of what else it may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.formats.tools.format import Format
from app.formats.tools.grammar import Block, Shape, Writer
from engine.api import Grammar
from engine.grammar.lark import literal, token, whole


def call_grammar(
    form: Format,
    tokens: Mapping[str, int],
    shapes: Sequence[Shape],
    *,
    parallel: bool,
    required: bool,
    beside: Grammar | None = None,
) -> Grammar:
    """Answers with calls of such `shapes` in a format, whose markers in `tokens` are tokens.

    Unless calls are `required`, an answer may be what `beside` derives instead; or without it any
    text, with calls behind it or not. Nothing follows calls. Raises `Unwritable`.
    """
    assert form.grammar is not None
    beside = None if required else beside
    beside_json = beside is not None and beside.kind == "json_schema"
    writer = Writer(shapes, parallel, tokens, beside_json)
    made = form.grammar(writer)
    rules = writer.rules
    rules += (f"calls_{index}: {block.calls}" for index, block in enumerate(made.blocks))
    if required or beside is not None:
        answers = _alone(writer, made.blocks)
        if beside is not None:
            answers.insert(0, whole(beside))
    else:
        rules.append(f"TEXT: {made.text}")
        answers = ["TEXT", *_behind_text(writer, made.blocks, rules)]
    source = "\n".join([f"start: {' | '.join(answers)}", *rules])
    used = tuple(one for one in tokens.values() if token(one) in source)
    extra = () if beside is None else beside.tokens
    return Grammar(kind="lark", source=source, tokens=(*used, *extra))


def _alone(writer: Writer, blocks: Sequence[Block]) -> list[str]:
    """Blocks that are whole answers, in the words that the model has tokens for if it has some."""
    told = [
        (f"{writer.marker(block.opening)} calls_{index}", block.opening)
        for index, block in enumerate(blocks)
        if block.usual
    ]
    known = [one for one, opening in told if opening in writer.tokens or opening[:1] != "<"]
    return known or [told[0][0]]


def _behind_text(writer: Writer, blocks: Sequence[Block], rules: list[str]) -> list[str]:
    """Blocks in free text: whatever opens one there, spelled or as a token, is followed by calls.

    That a spelled opening cannot be text it owes to a terminal that takes as little as it can.
    """
    answers = []
    for index, block in enumerate(blocks):
        calls = f"calls_{index}"
        if not block.opening:
            answers.append(calls)
            continue
        if block.opening in writer.tokens:
            answers.append(f"TEXT {writer.marker(block.opening)} {calls}")
        rules.append(f"opening_{index}[lazy]: TEXT {block.spelled or literal(block.opening)}")
        answers.append(f"opening_{index} {calls}")
    return answers
