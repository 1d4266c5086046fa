"""Grammars that are meant to harm, over HTTP: how long they hold up a neighbour, and how they end.

They are deep, wide, explosive, contradictory and broken: each is of some family, its size drawn at
random up to what the door lets in. As many requests with a plain one are sent before them: what
these hold up is what any load does.
"""

from __future__ import annotations

import argparse
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from statistics import median
from typing import Any, Final

import httpx
from rich.table import Table

from bench.common.options import service_flags
from bench.common.service import Service, running_service, served_model
from bench.registry import BenchError
from bench.service.stall import CHAT
from engine.api import Grammar
from engine.validation import MAX_DEFINITIONS, MAX_GRAMMAR_BYTES

_AT_ONCE: Final = 8
_CALM_SECONDS: Final = 3.0
_PATIENCE_SECONDS: Final = 120.0
_PLAIN: Final = Grammar(kind="regex", source="[a-z ]{400}")
_WORDS: Final = {"json_schema": "json", "regex": "regex", "lark": "grammar"}


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


def attack(options: argparse.Namespace) -> tuple[dict[str, float], list[Table]]:
    """Send `options.hostile` grammars, several at once, beside a stream of another tenant.

    Before them, as many plain ones of a third tenant. Raises `BenchError` where the stream does
    not go on, or a request has no answer.
    """
    with running_service(service_flags(options)) as service:
        neighbour = _Neighbour(service, service.create_tenant("neighbour"))
        time.sleep(_CALM_SECONDS)
        calm = neighbour.gaps(0.0)
        key = service.create_tenant("guest")
        began = time.monotonic()
        _send(service, key, [_PLAIN] * options.hostile)
        busy = neighbour.gaps(began)
        grammars = [grammar for _, grammar in hostile_grammars(options.hostile)]
        key = service.create_tenant("attacker")
        began = time.monotonic()
        answers = _send(service, key, grammars)
        gaps = neighbour.gaps(began)
        neighbour.close()
    if not (calm and busy and gaps):
        raise BenchError("the neighbour's stream does not go on")
    usual = median(calm)
    figures = {
        "hostile_stall_ms_max": (max(gaps) - usual) * 1000,
        "plain_stall_ms_max": (max(busy) - usual) * 1000,
        "hostile_gap_ms_usual": usual * 1000,
        "hostile_gap_ms_max_calm": max(calm) * 1000,
    }
    table = Table("answer", "requests", title="hostile grammars", title_justify="left")
    for answer, count in sorted(answers.items()):
        table.add_row(answer, str(count))
    return figures, [table]


class _Neighbour:
    """A tenant whose answers stream, one after the other, read by a thread of its own."""

    def __init__(self, service: Service, api_key: str) -> None:
        self._client = service.client(api_key, _PATIENCE_SECONDS)
        self._body = {
            "model": served_model(service.url, api_key),
            "messages": [{"role": "user", "content": "Tell me of the wall."}],
            "max_tokens": 2000,
            # Every token is text: nothing comes of one that a client is not shown.
            "structured_outputs": {"regex": "[a-z ]{4000}"},
            "stream": True,
        }
        self._streams: list[list[float]] = []
        self._is_closed = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def gaps(self, since: float) -> list[float]:
        """Seconds between two deltas of one stream, of those that ended later."""
        streams = [list(stream) for stream in self._streams]
        pairs = (pair for stream in streams for pair in pairwise(stream))
        return [late - early for early, late in pairs if late > since]

    def close(self) -> None:
        """Leave."""
        self._is_closed = True
        self._client.close()
        self._reader.join(_PATIENCE_SECONDS)

    def _read(self) -> None:
        with suppress(httpx.HTTPError, RuntimeError):  # what it raises once it is closed
            while not self._is_closed:
                arrivals: list[float] = []
                self._streams.append(arrivals)
                with self._client.stream("POST", CHAT, json=self._body) as answer:
                    for line in answer.iter_lines():
                        if self._is_closed:
                            return
                        if '"content":"' in line:
                            arrivals.append(time.monotonic())


def _send(service: Service, api_key: str, grammars: list[Grammar]) -> Counter[str]:
    """How requests with these are answered: by status, and where that is 200 by what ended them."""
    model = served_model(service.url, api_key)
    client = service.client(api_key, _PATIENCE_SECONDS)
    with client, ThreadPoolExecutor(_AT_ONCE) as threads:

        def post(grammar: Grammar) -> str:
            body = {
                "model": model,
                "messages": [{"role": "user", "content": "Answer."}],
                "max_tokens": 32,
                "structured_outputs": {_WORDS[grammar.kind]: grammar.source},
            }
            answer = client.post(CHAT, content=json.dumps(body))
            if answer.status_code != httpx.codes.OK:
                return f"HTTP {answer.status_code}"
            return f"ended by {answer.json()['choices'][0]['finish_reason']}"

        try:
            return Counter(threads.map(post, grammars))
        except httpx.HTTPError as error:
            raise BenchError(f"a hostile request has no answer: {error!r}") from error
