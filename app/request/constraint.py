"""What an answer is held to, which field asked for it, and whether it can be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b

import msgspec

from app.recent import Recent
from app.wire.common import SamplingFields
from app.wire.errors import ApiError, invalid_request
from app.wire.formats import (
    ResponseFormat,
    StructuralTags,
    StructuredOutputs,
    TextFormat,
    grammar_of,
)
from app.wire.functions import Tools
from app.workers import Workers
from engine.api import EngineInfo, Grammar
from engine.grammar.gbnf import in_lark, is_gbnf
from engine.grammar.lark import Tag, tag_grammar
from engine.grammar.source import problem_of
from engine.validation import excess_of

_MOST_KNOWN = 1024


@dataclass(frozen=True, slots=True)
class Constraint:
    """A grammar, and the field that an error about it names. It is that of `tags`, if of some."""

    grammar: Grammar
    field: str
    tags: Sequence[Tag] = ()

    def of_model(self, tokens_of: Callable[[str], Mapping[str, int]]) -> Constraint:
        """It for a model with control tokens, of which a text has these."""
        if not self.tags:
            return self
        tokens = tokens_of("".join(text for tag in self.tags for text in tag.texts))
        return replace(self, grammar=tag_grammar(self.tags, tokens))

    def check(self, info: EngineInfo) -> None:
        """Raise `ApiError` where no grammar can be used, or none that is so long."""
        if not info.has_grammars:
            message = f"'{self.field}': this model's answers cannot be held to a format."
            raise invalid_request(message, self.field, "unsupported_value")
        if excess := excess_of(self.grammar):
            message = f"'{self.field}' is too long: it may have {excess}."
            raise invalid_request(message, self.field)


def asked_constraint(form: TextFormat | ResponseFormat | None, field: str) -> Constraint | None:
    """What a format asks for, if that is anything."""
    grammar = None if form is None else grammar_of(form)
    if grammar is None:
        return None
    return Constraint(grammar, field, form.tags if isinstance(form, StructuralTags) else ())


def constraint_of(
    sampling: SamplingFields,
    asked: Constraint | None,
    outputs: StructuredOutputs | None,
    tools: Tools,
) -> Constraint | None:
    """What a request's format asks for, or vLLM's field.

    Raises `ApiError` naming a field that does not go with others.
    """
    if outputs is not None:
        if asked is not None:
            message = f"Give 'structured_outputs' or '{asked.field}'."
            raise invalid_request(message, "structured_outputs")
        tags = outputs.structural_tag.tags if outputs.structural_tag else ()
        asked = Constraint(outputs.grammar, f"structured_outputs.{outputs.kind}", tags)
    for field in ("ignore_eos", "min_tokens"):
        holding = getattr(sampling, field) and (asked.field if asked else tools.holding_field)
        if holding:
            message = f"'{field}' cannot go with '{holding}', which says where the answer ends."
            raise invalid_request(message, field)
    if sampling.stop_token_ids and tools.raws:
        message = "'stop_token_ids' cannot go with tools that have a grammar."
        raise invalid_request(message, "stop_token_ids")
    return asked


def check_held(constraint: Constraint | None, tools: Tools, info: EngineInfo) -> None:
    """Raise `ApiError` naming the field that asks for a grammar where none can be used."""
    if constraint is not None:
        constraint.check(info)
    if not info.has_grammars and (field := tools.holding_field):
        message = f"'{field}': this model's answers cannot be held to calls."
        raise invalid_request(message, field, "unsupported_value")


class GrammarCheck:
    """Finds out what cannot be compiled, before anything runs; reads GBNF. `workers` look at it.

    What was found is kept for those who may share the request's blocks, and for nobody else.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._known = Recent[bytes, str | None](_MOST_KNOWN)
        """By namespace and grammar, what is wrong with it."""

    async def check(self, tenant: str, namespace_key: bytes, constraint: Constraint) -> Grammar:
        """The grammar as the engine reads it.

        Raises `ApiError` naming the field of one that cannot be compiled.
        """
        grammar = constraint.grammar
        if is_gbnf(grammar):
            try:
                grammar = await self._workers.run(tenant, partial(in_lark, grammar))
            except ValueError as error:
                raise _unusable(constraint, str(error)) from None
        if problem := await self.problem_of(tenant, namespace_key, grammar):
            raise _unusable(constraint, problem)
        return grammar

    async def problem_of(self, tenant: str, namespace_key: bytes, grammar: Grammar) -> str | None:
        """Why a grammar cannot be compiled, if so."""
        if excess := excess_of(grammar):
            return f"it may have {excess}"
        key = blake2b(msgspec.json.encode(grammar), key=namespace_key).digest()
        if key not in self._known:
            self._known.put(key, await self._workers.run(tenant, partial(problem_of, grammar)))
        return self._known.use(key)


def _unusable(constraint: Constraint, problem: str) -> ApiError:
    message = f"'{constraint.field}' cannot be used: {problem}."
    return invalid_request(message, constraint.field)
