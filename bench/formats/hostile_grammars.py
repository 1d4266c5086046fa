"""Grammars that are meant to harm: deep, wide, explosive, contradictory and broken ones.

Each is of some family, its size drawn at random up to what the door lets in.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any, Final

from engine.api import Grammar
from engine.validation import MAX_DEFINITIONS, MAX_GRAMMAR_BYTES


def hostile_grammars(count: int, seed: int = 0) -> Iterator[tuple[str, Grammar]]:
    """So many, of all families in turn, with their families' names."""
    rng = random.Random(seed)
    for number in range(count):
        family = _FAMILIES[number % len(_FAMILIES)]
        grammar = family(rng)
        if len(grammar.source) > MAX_GRAMMAR_BYTES:
            grammar = Grammar(kind=grammar.kind, source=grammar.source[:MAX_GRAMMAR_BYTES])
        yield family.__name__.removeprefix("_"), grammar


def _schema(whole: Any) -> Grammar:
    return Grammar(kind="json_schema", source=json.dumps(whole, separators=(",", ":")))


def _regex(source: str) -> Grammar:
    return Grammar(kind="regex", source=source)


def _lark(*lines: str) -> Grammar:
    return Grammar(kind="lark", source="\n".join(lines))


def _chain_of_references(rng: random.Random) -> Grammar:
    count = rng.randrange(100, 1500)
    chain = {f"{at}": {"$ref": f"#/$defs/{at + 1}"} for at in range(count)}
    return _schema({"$ref": "#/$defs/0", "$defs": chain | {f"{count}": {}}})


def _circle_of_references(rng: random.Random) -> Grammar:
    count = rng.randrange(2, 200)
    circle = {f"{at}": {"$ref": f"#/$defs/{(at + 1) % count}"} for at in range(count)}
    return _schema({"$ref": "#/$defs/0", "$defs": circle})


def _bushy_references(rng: random.Random) -> Grammar:
    """Each twice the next: two to the power of their number, were they written out."""
    count = rng.randrange(10, 100)
    bush: dict[str, Any] = {
        f"{at}": {"type": "array", "prefixItems": [{"$ref": f"#/$defs/{at + 1}"}] * 2}
        for at in range(count)
    }
    return _schema({"$ref": "#/$defs/0", "$defs": bush | {f"{count}": {"type": "null"}}})


def _brackets(rng: random.Random) -> Grammar:
    depth = rng.randrange(50, 20_000)
    return Grammar(kind="json_schema", source='{"items":' * depth + "{}" + "}" * depth)


def _nested_arrays(rng: random.Random) -> Grammar:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(rng.randrange(20, 300)):
        schema = {"type": "array", "items": schema, "minItems": rng.randrange(1, 1000)}
    return _schema(schema)


def _huge_enumeration(rng: random.Random) -> Grammar:
    count = rng.randrange(1000, 6000)
    return _schema({"enum": [f"{rng.randrange(10**9)}" for _ in range(count)]})


def _many_alternatives(rng: random.Random) -> Grammar:
    patterns = ({"type": "string", "pattern": f".*a.{{{at}}}b"} for at in range(5, 400))
    return _schema({"anyOf": list(patterns)[: rng.randrange(10, 400)]})


def _many_optional_properties(rng: random.Random) -> Grammar:
    names = {f"p{at}": {"type": "integer"} for at in range(rng.randrange(100, 2500))}
    return _schema({"type": "object", "properties": names})


def _intersections(rng: random.Random) -> Grammar:
    parts = [
        {"type": "string", "pattern": f"^(.*{chr(97 + at % 26)}.{{{rng.randrange(1, 60)}}})+$"}
        for at in range(rng.randrange(2, 12))
    ]
    return _schema({"allOf": parts})


def _large_counts(rng: random.Random) -> Grammar:
    most = 10 ** rng.randrange(3, 19)
    return _schema(
        rng.choice(
            [
                {"type": "string", "minLength": most},
                {"type": "string", "maxLength": most, "pattern": "(ab|a|b)+"},
                {"type": "array", "items": {"type": "string"}, "minItems": most, "maxItems": most},
                {"type": "number", "multipleOf": 1 / most},
                {"type": "integer", "multipleOf": most - 1, "minimum": 1},
            ]
        )
    )


def _contradictions(rng: random.Random) -> Grammar:
    return _schema(
        rng.choice(
            [
                {"type": "integer", "minimum": 5, "maximum": 4},
                {"type": "string", "minLength": 5, "maxLength": 4},
                {"allOf": [{"type": "string"}, {"type": "null"}]},
                {"type": "array", "items": False, "minItems": 1},
                {"type": "object", "required": ["a"], "additionalProperties": False},
                {"enum": []},
                False,
            ]
        )
    )


def _no_schema(rng: random.Random) -> Grammar:
    parts = ["", "null", "[]", '"x"', "{", '{"type":7}', '{"$ref":"#/nowhere"}', '{"$ref":3}']
    parts += ['{"properties":[]}', '{"pattern":"(","type":"string"}', '{"required":"a"}', "\0"]
    parts += ['{"$ref":"http://example.com/s.json"}', '{"items":{"type":"widget"}}', "NaN"]
    return Grammar(kind="json_schema", source=rng.choice(parts))


def _explosive_expression(rng: random.Random) -> Grammar:
    size = rng.randrange(10, 5000)
    return _regex(
        rng.choice(
            [
                f"(a|b)*a(a|b){{{size}}}",
                f"(.*a.{{{min(size, 900)}}}){{{rng.randrange(1, 20)}}}",
                f"(a{{{size}}}){{{size}}}",
                rf"\p{{L}}{{1,{size}}}\p{{N}}{{1,{size}}}",
                "(" * size + "a" + ")*" * size,
                "|".join(f".*{at}.*" for at in range(min(size, 3000))),
                f"((a?){{{size}}}a{{{size}}})",
            ]
        )
    )


def _ambiguous_rules(rng: random.Random) -> Grammar:
    body = rng.choice(['start start | "a"', "start* a", "a? start? a?", "(start | a)+", "a a a"])
    return _lark(f"start: {body}", 'a: "a" | a a | b', 'b: "" | a b | b a | /a*/')


def _chain_of_rules(rng: random.Random) -> Grammar:
    count = rng.randrange(10, MAX_DEFINITIONS - 2)
    twice = rng.choice(["{}", "{} {}", "{}? {}", "({} | {})*"])
    chain = (f"r{at}: {twice.format(*[f'r{at + 1}'] * 2)}" for at in range(count))
    return _lark("start: r0", *chain, f'r{count}: "x"')


def _intersected_terminals(rng: random.Random) -> Grammar:
    parts = (f"/.*{letter}.{{{rng.randrange(5, 80)}}}/" for letter in "abcdef")
    return _lark("start: A", f"A: {' & '.join(list(parts)[: rng.randrange(2, 6)])}")


def _many_terminals(rng: random.Random) -> Grammar:
    count = rng.randrange(50, MAX_DEFINITIONS - 1)
    names = [f"T{at}" for at in range(count)]
    bodies = (f"{name}: /[a-z]*{at}.*/" for at, name in enumerate(names))
    return _lark(f"start: ({' | '.join(names)})*", *bodies)


def _embedded_schemas(rng: random.Random) -> Grammar:
    inner = _bushy_references(rng).source
    return _lark("start: a a a a", f"a: %json {inner}")


def _endless_epsilon(rng: random.Random) -> Grammar:
    count = rng.randrange(2, 100)
    rules = (f'e{at}: e{(at + 1) % count} | "" | e{at} e{at}' for at in range(count))
    return _lark('start: (e0* "x")*', *rules)


_FAMILIES: Final[list[Callable[[random.Random], Grammar]]] = [
    _chain_of_references,
    _circle_of_references,
    _bushy_references,
    _brackets,
    _nested_arrays,
    _huge_enumeration,
    _many_alternatives,
    _many_optional_properties,
    _intersections,
    _large_counts,
    _contradictions,
    _no_schema,
    _explosive_expression,
    _ambiguous_rules,
    _chain_of_rules,
    _intersected_terminals,
    _many_terminals,
    _embedded_schemas,
    _endless_epsilon,
]
