"""A body of the chat completions API as a request to generate: what its fields mean together.

An answer's candidates are sampled from one prompt, or searched by beams.
"""

from __future__ import annotations

import secrets

from app.request.cache_wish import cache_wish
from app.request.constraint import Constraint, asked_constraint, constraint_of
from app.request.request import Candidates, FieldNames, GenerationRequest
from app.request.template_options import TemplateOptions
from app.wire.chat import ChatBody, ChatMessage
from app.wire.errors import invalid_request
from app.wire.functions import Message, Tools
from app.wire.parts.pictures import with_content
from app.wire.prompt_cache import marked_parts, with_breakpoints
from app.wire.tools import asked_tools
from engine.api import BeamParams

_NEUTRAL: dict[str, object] = {
    "stream": False,
    "temperature": 0,
    "best_of": None,
    "top_p": 1,
    "top_k": 0,
    "min_p": 0,
    "seed": None,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "repetition_penalty": 1,
    "logit_bias": {},
    "logprobs": False,
    "stop": [],
    "min_tokens": 0,
}
"""What must not change how beams are searched or shown, and the values that ask for nothing."""


def generation_request(body: ChatBody) -> GenerationRequest:
    """What a body asks for. Raises `ApiError` naming a field that does not go with others."""
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise invalid_request("Give 'max_tokens' or 'max_completion_tokens'.", "max_tokens")
    if body.top_logprobs is not None and not body.logprobs:
        raise invalid_request("'top_logprobs' needs 'logprobs': true.", "top_logprobs")
    if body.stream_options is not None and not body.stream:
        raise invalid_request("'stream_options' needs 'stream': true.", "stream_options")
    if body.metadata and not body.store:
        raise invalid_request("'metadata' needs 'store': true: nothing else is kept.", "metadata")
    if body.prompt_logprobs is not None and body.stream:
        raise invalid_request("'prompt_logprobs' cannot be streamed.", "prompt_logprobs")
    candidates = _sampled(body) if body.num_beams is None else _searched(body, body.num_beams)
    functions = [tool.asked for tool in body.tools or ()]
    tools = asked_tools(functions, body.tool_choice, body.parallel_tool_calls)
    maximum = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    return GenerationRequest(
        id=f"chatcmpl-{secrets.token_hex(16)}",
        items=[
            message_item(message, f"messages[{index}]")
            for index, message in enumerate(body.messages)
        ],
        names=FieldNames(
            "messages",
            maximum,
            "tools[{}].function.parameters",
            "tools[{}].custom.format.grammar.definition",
        ),
        sampling=body,
        model=body.model,
        max_tokens=getattr(body, maximum),
        logprobs=body.top_logprobs or 0 if body.logprobs or candidates.ranks else None,
        prompt_logprobs=body.prompt_logprobs,
        constraint=_constraint(body, tools),
        candidates=candidates,
        tools=tools,
        template_options=TemplateOptions(body.reasoning_effort, body.chat_template_kwargs or {}),
        cache=cache_wish(
            body.prompt_cache_options,
            body.prompt_cache_retention,
            [mark for message in body.messages for mark in marked_parts(message.content)],
        ),
    )


def _constraint(body: ChatBody, tools: Tools) -> Constraint | None:
    asked = asked_constraint(body.response_format, "response_format")
    constraint = constraint_of(body, asked, body.structured_outputs, tools)
    field = tools.holding_field if constraint is None else constraint.field.partition(".")[0]
    if field is not None and body.num_beams is not None:
        raise invalid_request(f"'{field}' cannot go with 'num_beams'.", field)
    return constraint


def message_item(message: ChatMessage, param: str) -> Message:
    """A message as what was said. Raises `ApiError` for fields that its role has not, or lacks."""
    role = message.role
    if message.tool_calls and role != "assistant":
        raise invalid_request("Only an assistant's message has calls.", f"{param}.tool_calls")
    if (message.tool_call_id is not None) != (role == "tool"):
        text = "A message of role 'tool', and no other, has a 'tool_call_id'."
        raise invalid_request(text, f"{param}.tool_call_id")
    said: Message = {"role": "system" if role == "developer" else role, "content": ""}
    takes_pictures = role in ("user", "tool")
    said = with_content(said, message.content, f"{param}.content", taken=takes_pictures)
    if message.name is not None:
        said["name"] = message.name
    if message.tool_call_id is not None:
        said["call_id"] = message.tool_call_id
    if message.reasoning_content and role == "assistant":
        said["reasoning"] = message.reasoning_content
    if message.tool_calls:
        said["calls"] = [one.call for one in message.tool_calls]
    return with_breakpoints(said, message.content)


def _sampled(body: ChatBody) -> Candidates:
    for field in ("length_penalty", "early_stopping"):
        if getattr(body, field) is not None:
            raise invalid_request(f"'{field}' needs 'num_beams'.", field)
    return sampled(body.n or 1, body.best_of, streamed=bool(body.stream))


def sampled(n: int, best_of: int | None, *, streamed: bool) -> Candidates:
    """`n` answers, the best of so many. Raises `ApiError` where they cannot be chosen."""
    field = "n" if best_of is None else "best_of"
    best_of = n if best_of is None else best_of
    if best_of < n:
        raise invalid_request(f"'best_of' must be at least 'n', which is {n}.", "best_of")
    if best_of > n and streamed:
        message = (
            "'best_of' cannot choose among answers that are streamed; give it the value of 'n'."
        )
        raise invalid_request(message, "best_of")
    return Candidates(num_choices=n, num_sequences=best_of, field=field)


def _searched(body: ChatBody, num_beams: int) -> Candidates:
    for field, neutral in _NEUTRAL.items():
        if getattr(body, field) not in (None, neutral):
            raise invalid_request(f"'{field}' cannot go with 'num_beams'.", field)
    n = body.n or 1
    if n > num_beams:
        raise invalid_request(f"{num_beams} beams have no {n} hypotheses to return.", "n")
    never = body.early_stopping == "never"
    beam = BeamParams(
        num_beams=num_beams,
        num_return=n,
        length_penalty=1.0 if body.length_penalty is None else body.length_penalty,
        early_stopping=None if never else bool(body.early_stopping),
    )
    return Candidates(num_choices=n, beam=beam, field="num_beams")
