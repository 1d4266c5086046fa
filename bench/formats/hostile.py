"""Hostile grammars over HTTP: how long they hold up a neighbour's stream, and how they end.

As many requests with a plain one are sent before them: what these hold up is what any load does.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from statistics import median
from typing import Final

import httpx
from rich.table import Table

from bench.common.service import Service, running_service, served_model
from bench.formats.hostile_grammars import hostile_grammars
from bench.registry import BenchError
from bench.service.hostile import CHAT
from engine.api import Grammar

_AT_ONCE: Final = 8
_CALM_SECONDS: Final = 3.0
_PATIENCE_SECONDS: Final = 120.0
_PLAIN: Final = Grammar(kind="regex", source="[a-z ]{400}")
_WORDS: Final = {"json_schema": "json", "regex": "regex", "lark": "grammar"}


def attack(options: argparse.Namespace) -> tuple[dict[str, float], list[Table]]:
    """Send `options.hostile` grammars, several at once, beside a stream of another tenant.

    Before them, as many plain ones of a third tenant. Raises `BenchError` where the stream does
    not go on, or a request has no answer.
    """
    flags = ["--model", options.model, "--dtype", options.dtype, "--quantize", options.quantize]
    with running_service(flags) as service:
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
        self._client = _client(service, api_key)
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
    with _client(service, api_key) as client, ThreadPoolExecutor(_AT_ONCE) as threads:

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


def _client(service: Service, api_key: str) -> httpx.Client:
    headers = {"authorization": f"Bearer {api_key}", "content-type": "application/json"}
    return httpx.Client(
        base_url=service.url, headers=headers, timeout=_PATIENCE_SECONDS, trust_env=False
    )
