"""The service with a model that calls, and is brief: its command line is `partywall`'s own.

The default model is too small to call functions of its own accord, which agents leave to it. Here
an answer to a user, with functions described in the prompt, is held to a call of one of them: which
one, and with what, the model says. Any other answer is its own, but ends in time: it is held to so
many characters, since a small model may ramble for minutes. All else is the service as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from msgspec import structs

from app import cli, main
from app.prompt.tokenizer import load_tokenizer
from engine.api import EngineRequest, Grammar, TokenDelta
from engine.config import EngineConfig
from engine.serve.process import ProcessEngine

_FUNCTIONS = re.compile(r"<tools>\n(.*?)\n</tools>", re.DOTALL)
_LONGEST_STRING = 24
"""Characters of one string in a call's arguments."""
_ANSWER = Grammar(kind="regex", source=r"(.|\n){1,200}")


class CallingEngine(ProcessEngine):
    """The engine; see the module."""

    def __init__(self, config: EngineConfig, *options: float) -> None:
        super().__init__(config, *options)
        self._tokenizer = load_tokenizer(Path(config.model_path))

    async def generate(self, request: EngineRequest) -> AsyncIterator[TokenDelta]:
        """As the real one, with a grammar of its own where a client has given none."""
        chosen = (
            request.grammar or request.beam or request.num_scored or request.sampling.min_tokens
        )
        if not chosen and request.sampling.max_tokens:
            grammar = self._call_due(request.prompt) or _ANSWER
            request = structs.replace(request, grammar=grammar)
        async for delta in super().generate(request):
            yield delta

    def _call_due(self, prompt: list[int]) -> Grammar | None:
        text = self._tokenizer.decode(prompt)
        described = _FUNCTIONS.search(text)
        last = text.rpartition("<|im_start|>user\n")[2]
        if described is None or last.startswith("<tool_response>"):
            return None
        functions = [json.loads(line)["function"] for line in described[1].splitlines()]
        return Grammar(kind="lark", source=_lark(functions))


def _lark(functions: list[dict[str, Any]]) -> str:
    rules = [f"start: {' | '.join(f'call_{index}' for index in range(len(functions)))}"]
    for index, function in enumerate(functions):
        opening = json.dumps(f'<tool_call>\n{{"name": "{function["name"]}", "arguments": ')
        closing = json.dumps("}\n</tool_call>")
        rules.append(f"call_{index}: {opening} arguments_{index} {closing}")
        rules.append(f"arguments_{index}: %json {json.dumps(_bounded(function['parameters']))}")
    return "\n".join(rules)


def _bounded(schema: Any) -> Any:
    """A schema whose texts end soon."""
    if isinstance(schema, list):
        return [_bounded(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    bounded = {name: _bounded(one) for name, one in schema.items()}
    if schema.get("type") == "string" and not {"enum", "const", "pattern", "format"} & set(schema):
        bounded.setdefault("maxLength", _LONGEST_STRING)
    return bounded


if __name__ == "__main__":
    main.ProcessEngine = CallingEngine  # type: ignore[misc]
    cli.main()
