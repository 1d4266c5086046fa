"""A create request turned into what the engine is asked, for both APIs."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from app.chat_template import ChatTemplate, Message
from app.errors import ApiError, invalid_request
from app.history import Turn
from app.sealing import unseal
from app.system_heads import SystemHeads, SystemText
from app.wire import SamplingFields
from app.wire_chat import ChatMessage
from app.wire_responses import CompactionItem, MessageItem, PromptReference
from engine.admission import check_request
from engine.hashing import derive_key
from engine.request import EngineInfo, EngineRequest, Namespaces, SamplingParams
from tenants.records import Tenant

Said = MessageItem | CompactionItem | ChatMessage
"""An item of the conversation, from either API."""


@dataclass(frozen=True)
class Prompt:
    """The prompt of one turn: ids, how many of them the tenant shares, and its system text.

    `end_user` is whom the conversation so far belongs to.
    """

    ids: list[int]
    shared_tokens: int
    system: str | None
    end_user: str | None = None


class TurnBuilder:
    """Builds prompts and engine requests."""

    def __init__(self, template: ChatTemplate, heads: SystemHeads) -> None:
        self._template = template
        self._heads = heads

    async def begin(
        self,
        tenant: Tenant,
        items: Sequence[Said],
        *,
        instructions: str | None = None,
        reference: PromptReference | None = None,
        param: str,
    ) -> Prompt:
        """The prompt of a conversation's first turn.

        The system text is the registered prompt that `reference` names, or `instructions`, or else
        the leading system message. Raises `ApiError` naming the field at fault.
        """
        messages = _messages(tenant, items)
        system: SystemText | None = None
        if reference is not None:
            if instructions is not None:
                raise invalid_request("'instructions' cannot go with 'prompt'.", "instructions")
            system = await self._heads.resolve(tenant.id, reference)
            messages.insert(0, {"role": "system", "content": system.text})
        else:
            if instructions is not None:
                messages.insert(0, {"role": "system", "content": instructions})
            if messages[0]["role"] == "system":
                system = await self._heads.recognize(tenant.id, messages[0]["content"])
        ids = await self._template.prompt_ids(messages, param)
        shared = await self._heads.shared_tokens(tenant.id, system, ids)
        return Prompt(ids, shared, system.text if system else None)

    async def resume(
        self,
        tenant: Tenant,
        previous: Turn,
        items: Sequence[Said],
        *,
        instructions: str | None,
        reference: PromptReference | None,
    ) -> Prompt:
        """The prompt of a later turn: the ids so far, and the new messages after them.

        The conversation keeps its system text. `instructions` or `prompt` may be repeated; others
        would rewrite the head of the ids, and are refused by name.
        """
        system, param = instructions, "instructions"
        if reference is not None:
            system, param = (await self._heads.resolve(tenant.id, reference)).text, "prompt"
        if system is not None and system != previous.system:
            message = (
                "A continued conversation keeps its system text; start a new one to change it."
            )
            raise invalid_request(message, param)
        ids = await self._template.continuation_ids(previous.ids, _messages(tenant, items), "input")
        return Prompt(ids, previous.shared_tokens, previous.system, previous.end_user)


def _messages(tenant: Tenant, items: Sequence[Said]) -> list[Message]:
    """Items as templates take them; developers and summaries speak as the system."""
    return [_message(tenant, item, f"input[{index}]") for index, item in enumerate(items)]


def _message(tenant: Tenant, item: Said, param: str) -> Message:
    if isinstance(item, CompactionItem):
        summary = unseal(tenant, item.encrypted_content)
        if summary is None:
            message = "This compaction item was not made by this service for this tenant."
            raise invalid_request(message, f"{param}.encrypted_content")
        return {"role": "system", "content": f"Summary of the conversation so far: {summary}"}
    role = "system" if item.role == "developer" else item.role
    return {"role": role, "content": item.text}


def engine_request(
    request_id: str,
    tenant: Tenant,
    prompt: Prompt,
    fields: SamplingFields,
    info: EngineInfo,
    *,
    end_user: str | None,
    max_tokens: int,
    logprobs: int | None,
) -> EngineRequest:
    """What the engine is asked.

    Raises `ApiError` for token ids outside the vocabulary, and `RequestRefused` for whatever else
    the engine would refuse: a stream begins only once nothing can be refused any more.
    """
    private_key = tenant.user_key(end_user) if end_user is not None else tenant.namespace_key
    if fields.prompt_cache_key is not None:
        private_key = derive_key(private_key, "prompt_cache_key", fields.prompt_cache_key)
    request = EngineRequest(
        request_id=request_id,
        tenant=tenant.id,
        prompt=prompt.ids,
        namespaces=Namespaces(
            shared_key=tenant.namespace_key,
            private_key=private_key,
            shared_tokens=prompt.shared_tokens,
        ),
        sampling=_sampling(fields, info, max_tokens, logprobs),
    )
    check_request(request, info)
    return request


def _sampling(
    fields: SamplingFields, info: EngineInfo, max_tokens: int, logprobs: int | None
) -> SamplingParams:
    extra_stops = tuple(fields.stop_token_ids or ())
    for index, token_id in enumerate(extra_stops):
        _check_token(token_id, info, f"stop_token_ids[{index}]")
    eos = () if fields.ignore_eos else info.eos_token_ids
    # A negative seed is as good as any: it maps to one non-negative 63-bit number.
    seed = secrets.randbits(63) if fields.seed is None else fields.seed & (2**63 - 1)
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=or_default(fields.temperature, 1.0),
        top_p=or_default(fields.top_p, 1.0),
        top_k=fields.top_k or 0,
        min_p=or_default(fields.min_p, 0.0),
        presence_penalty=or_default(fields.presence_penalty, 0.0),
        frequency_penalty=or_default(fields.frequency_penalty, 0.0),
        repetition_penalty=or_default(fields.repetition_penalty, 1.0),
        logit_bias=_logit_bias(fields.logit_bias or {}, info),
        logprobs=logprobs,
        seed=seed,
        stop_token_ids=tuple(dict.fromkeys((*eos, *extra_stops))),
    )


def or_default(value: float | None, default: float) -> float:
    """A number as a float, or the protocol's default where none is given."""
    return default if value is None else float(value)


def _logit_bias(bias: dict[str, float], info: EngineInfo) -> dict[int, float]:
    checked: dict[int, float] = {}
    for name, value in bias.items():
        param = f"logit_bias.{name}"
        if not (name.isascii() and name.isdecimal()):
            raise invalid_request(f"'{name}' is not a token id.", param)
        _check_token(int(name), info, param)
        checked[int(name)] = float(value)
    return checked


def _check_token(token_id: int, info: EngineInfo, param: str) -> None:
    if not 0 <= token_id < info.vocab_size:
        message = f"Token id {token_id} is outside the vocabulary of {info.vocab_size}."
        raise invalid_request(message, param)


def output_budget(
    prompt_tokens: int,
    asked: int | None,
    default: int | None,
    info: EngineInfo,
    params: tuple[str, str],
) -> int:
    """How many tokens the answer may have.

    Without an explicit number: the rest of the context, within the service's `default`. `params`
    name the input and the maximum. Raises `ApiError` if prompt and answer do not fit the context.
    """
    input_param, maximum_param = params
    context = info.max_context_tokens
    remaining = context - prompt_tokens
    if remaining < 1:
        raise _too_long(
            f"The prompt has {prompt_tokens} tokens; this model's context holds {context}, "
            "answer included.",
            input_param,
        )
    if asked is not None and asked > remaining:
        raise _too_long(
            f"A prompt of {prompt_tokens} tokens leaves {remaining} of {context} for the answer; "
            f"{asked} were asked for.",
            maximum_param,
        )
    if asked is not None:
        return asked
    return remaining if default is None else min(remaining, default)


def _too_long(message: str, param: str) -> ApiError:
    return invalid_request(message, param, "context_length_exceeded")
