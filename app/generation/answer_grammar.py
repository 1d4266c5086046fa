"""What a request's answer is held to: its format, calls of its functions, or either."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from app.formats.tools.format import Block, Format, Shape, Unwritable, Writer
from app.prompt.chat_template import ChatTemplate
from app.prompt.reasoning_style import Opened
from app.request.request import GenerationRequest
from app.wire.errors import invalid_request
from app.wire.functions import Function
from engine.api import Grammar
from engine.grammar.lark import ANY_TEXT, literal, not_begun_by, token, whole
from engine.grammar.schemas import bound_beyond
from engine.validation import MAX_GRAMMAR_BYTES

ProblemOf = Callable[[Grammar], Awaitable[str | None]]
"""What is wrong with a grammar, if it cannot be used."""


async def answer_grammar(
    request: GenerationRequest,
    template: ChatTemplate,
    asked: Grammar | None,
    problem_of: ProblemOf,
    bounded: Opened | None = None,
) -> Grammar | None:
    """The grammar of the answer, if it has one; `asked` is that of its format. Where what is
    reasoned before it is `bounded`, it has one, which may not say that instead.

    Raises `ApiError` naming what cannot be held.
    """
    tools = request.tools
    if bounded is None and (not tools.names or (asked is None and tools.holding_field is None)):
        return asked
    unsaid = template.reasoning.spelled_openings(bounded)
    if tools.names:
        return await _Calls(request, template, asked, problem_of, unsaid).grammar()
    return asked or any_answer(unsaid)


def any_answer(unsaid: Sequence[str]) -> Grammar:
    """Any text that begins with none of these."""
    source = f"start: TEXT\nTEXT: {ANY_TEXT}{not_begun_by(*unsaid)}"
    return Grammar(kind="lark", source=source)


_MOST_LOOSENED = 8
"""Functions of a request that take their time to be found out as such that cannot be held."""


class _Calls:
    """Finds the grammar of calls, or of calls beside a format.

    Functions that are not strict are held as far as it goes: to schemas without what cannot be
    held or may cost too much, or to objects with these members.
    """

    def __init__(
        self,
        request: GenerationRequest,
        template: ChatTemplate,
        beside: Grammar | None,
        problem_of: ProblemOf,
        unsaid: Sequence[str],
    ) -> None:
        tools, form = request.tools, template.tools.form
        field = tools.holding_field or "tools"
        if form is None:
            message = f"'{field}': this model's calls are in a format that it cannot be held to."
            raise invalid_request(message, field, "unsupported_value")
        self._write = partial(
            call_grammar,
            form,
            template.marker_tokens,
            parallel=tools.parallel,
            required=tools.required,
            beside=beside,
            unsaid=unsaid,
        )
        self._alone = partial(
            call_grammar, form, template.marker_tokens, parallel=False, required=True
        )
        called = [(at, one) for at, one in enumerate(tools.functions) if one.name in tools.names]
        self._fields = [request.names.held(one).format(at) for at, one in called]
        self._shapes = [_shape(one) for _, one in called]
        self._size = sum(one.size for _, one in called)
        self._strict_size = sum(one.size for _, one in called if one.strict)
        self._problem_of = problem_of

    async def grammar(self) -> Grammar:
        """Raises `ApiError` naming the function that cannot be held, or all of them together."""
        shapes = self._shapes
        if self._size <= MAX_GRAMMAR_BYTES:
            self._check_bounds()
            found, _ = await self._tried(self._write, shapes)
            if found is None:
                shapes = await self._each_held()
                found, _ = await self._tried(self._write, shapes)
            if found is not None:
                return found
        # What is too long for certain is not put together: that takes a while.
        problem: str | None = f"those that are 'strict' may have {MAX_GRAMMAR_BYTES} bytes at most"
        if self._strict_size <= MAX_GRAMMAR_BYTES:
            shapes = [one if one.strict else one.loosened for one in shapes]
            found, problem = await self._tried(self._write, shapes)
            if found is not None:
                return found
        raise invalid_request(f"These 'tools' cannot be used together: {problem}.", "tools")

    def _check_bounds(self) -> None:
        for shape, field in zip(self._shapes, self._fields, strict=True):
            if shape.strict and (bound := bound_beyond(shape.schema)):
                message = f"'{field}' cannot be held: '{bound}' is beyond 64 bits."
                raise invalid_request(message, field)

    async def _each_held(self) -> list[Shape]:
        """The shapes as far as each can be held by itself: some are found out, the rest assumed."""
        shapes: list[Shape] = []
        num_loosened = 0
        for shape, field in zip(self._shapes, self._fields, strict=True):
            if shape.strict or num_loosened < _MOST_LOOSENED:
                shapes.append(await self._held(shape, field))
                num_loosened += shapes[-1] is not shape
            else:
                shapes.append(shape.loosened)
        return shapes

    async def _held(self, shape: Shape, field: str) -> Shape:
        """A shape that can be held by itself."""
        problem = None
        for tried in (shape,) if shape.strict else (shape, shape.cheap):
            found, problem = await self._tried(self._alone, [tried])
            if found is not None:
                return tried
        if shape.strict:
            raise invalid_request(f"'{field}' cannot be held: {problem}.", field)
        return shape.loosened

    async def _tried(
        self, write: Callable[[Sequence[Shape]], Grammar], shapes: Sequence[Shape]
    ) -> tuple[Grammar | None, str | None]:
        """The grammar, or why it cannot be used."""
        try:
            grammar = write(shapes)
        except Unwritable as error:
            return None, str(error)
        problem = await self._problem_of(grammar)
        return (grammar, None) if problem is None else (None, problem)


def _shape(function: Function) -> Shape:
    shape = Shape.of(function.name, function.parameters, function.strict)
    return replace(shape, raw=whole(function.grammar)) if function.grammar else shape


def call_grammar(
    form: Format,
    tokens: Mapping[str, int],
    shapes: Sequence[Shape],
    *,
    parallel: bool,
    required: bool,
    beside: Grammar | None = None,
    unsaid: Sequence[str] = (),
) -> Grammar:
    """Answers with calls of such `shapes` in a format, whose markers in `tokens` are tokens.

    Unless calls are `required`, an answer may be what `beside` derives instead; or without it any
    text that begins with nothing `unsaid`, with calls behind it or not. Nothing follows calls.
    Raises `Unwritable`.
    """
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
        narrowed = not_begun_by(*unsaid)
        rules.append(f"TEXT: ({made.text}){narrowed}" if narrowed else f"TEXT: {made.text}")
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
