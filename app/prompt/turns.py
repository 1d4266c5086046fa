"""A create request turned into what the engine is asked, for both APIs."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from app.prompt.history import Turn
from app.prompt.sealing import unseal
from app.prompt.system_prompts import SystemHeads, SystemText
from app.prompt.template import ChatTemplate, Message
from app.wire.chat import ChatMessage
from app.wire.common import SamplingFields
from app.wire.errors import ApiError, invalid_request
from app.wire.responses import CompactionItem, MessageItem, PromptReference
from engine.api import (
    BeamParams,
    EngineInfo,
    EngineRequest,
    Namespaces,
    SamplingParams,
    TenantShare,
)
from engine.blocks.hashing import derive_key
from engine.validation import check_request
from tenants.records import Principal, Tenant, TenantLimits

Said = MessageItem | CompactionItem | ChatMessage
"""An item of the conversation, from either API."""


@dataclass(frozen=True)
class Prompt:
    """The prompt of one turn: ids, how many of them are a registered prompt's, and the system text.

    `shared_owner` is whose prompt that is, see `SystemText`, and `end_user` whom the conversation
    so far belongs to.
    """

    ids: list[int]
    shared_tokens: int = 0
    shared_owner: str = ""
    system: str | None = None
    end_user: str | None = None


class TurnBuilder:
    """Builds prompts and engine requests."""

    def __init__(self, template: ChatTemplate, heads: SystemHeads) -> None:
        self._template = template
        self._heads = heads

    async def begin(
        self,
        principal: Principal,
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
        messages = _messages(principal.tenant, items)
        system: SystemText | None = None
        if reference is not None:
            if instructions is not None:
                raise invalid_request("'instructions' cannot go with 'prompt'.", "instructions")
            system = await self._heads.resolve(principal, reference)
            messages.insert(0, {"role": "system", "content": system.text})
        else:
            if instructions is not None:
                messages.insert(0, {"role": "system", "content": instructions})
            if messages[0]["role"] == "system":
                system = await self._heads.recognize(principal, messages[0]["content"])
        ids = await self._template.prompt_ids(messages, param)
        if system is None:
            return Prompt(ids)
        shared = await self._heads.shared_tokens(system, ids)
        return Prompt(ids, shared, system.owner, system.text)

    async def resume(
        self,
        principal: Principal,
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
            system, param = (await self._heads.resolve(principal, reference)).text, "prompt"
        if system is not None and system != previous.system:
            message = (
                "A continued conversation keeps its system text; start a new one to change it."
            )
            raise invalid_request(message, param)
        messages = _messages(principal.tenant, items)
        ids = await self._template.continuation_ids(previous.ids, messages, "input")
        return Prompt(
            ids, previous.shared_tokens, previous.shared_owner, previous.system, previous.end_user
        )


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
    principal: Principal,
    prompt: Prompt,
    fields: SamplingFields,
    info: EngineInfo,
    *,
    end_user: str | None,
    max_tokens: int,
    logprobs: int | None,
    num_sequences: int = 1,
    beam: BeamParams | None = None,
) -> EngineRequest:
    """What the engine is asked. A beam search takes no temperature.

    Raises `ApiError` for token ids outside the vocabulary, and `RequestRefused` for whatever else
    the engine would refuse: a stream begins only once nothing can be refused any more.
    """
    tenant = principal.tenant
    private_key = tenant.user_key(end_user) if end_user is not None else tenant.namespace_key
    if fields.prompt_cache_key is not None:
        private_key = derive_key(private_key, "prompt_cache_key", fields.prompt_cache_key)
    sampling = _sampling(fields, info, max_tokens, logprobs)
    if beam is not None:
        sampling = msgspec.structs.replace(sampling, temperature=0.0)
    request = EngineRequest(
        request_id=request_id,
        tenant=tenant.id,
        prompt=prompt.ids,
        namespaces=_namespaces(principal, prompt, private_key),
        sampling=sampling,
        share=tenant_share(tenant),
        cache=tenant.cache == "on",
        num_sequences=num_sequences,
        beam=beam,
    )
    check_request(request, info)
    return request


def renewed(request: EngineRequest, principal: Principal, prompt: Prompt) -> EngineRequest:
    """An earlier request of the same tenant's as it may be made now, with an id of its own."""
    tenant = principal.tenant
    return msgspec.structs.replace(
        request,
        request_id=f"{request.request_id.partition('.')[0]}.{secrets.token_hex(4)}",
        namespaces=_namespaces(principal, prompt, request.namespaces.private_key),
        share=tenant_share(tenant),
        cache=tenant.cache == "on",
    )


def _namespaces(principal: Principal, prompt: Prompt, private_key: bytes) -> Namespaces:
    """Who may share the prompt's blocks.

    A group's prompt is the group's as long as the tenant is in it. Whatever registered prompt the
    tenant may not use any more is as private as the rest.
    """
    tenant, group = principal.tenant, principal.group
    keys = {tenant.id: tenant.namespace_key}
    if group is not None:
        keys[group.owner] = group.namespace_key
    shared_key = keys.get(prompt.shared_owner)
    return Namespaces(
        shared_key=private_key if shared_key is None else shared_key,
        private_key=private_key,
        shared_tokens=0 if shared_key is None else prompt.shared_tokens,
    )


def tenant_share(tenant: Tenant) -> TenantShare:
    """What the engine lets a tenant have."""
    return TenantShare(
        weight=tenant.weight,
        reserved_blocks=tenant.reserved_blocks,
        max_blocks=tenant.limits.blocks,
        max_pinned_blocks=tenant.limits.pinned_blocks,
    )


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
    limits: TenantLimits,
    params: tuple[str, str],
    sequences: int = 1,
) -> int:
    """How many tokens the answer may have, or each of several `sequences`.

    Without an explicit number: the rest of the context, within the service's `default`, what the
    tenant can reserve at once, and the blocks that all sequences together can have. `params` name
    the input and the maximum. Raises `ApiError` if prompt and answer do not fit the context, the
    model's or the tenant's, or the answer is longer than the tenant's may be.
    """
    input_param, maximum_param = params
    context = min(info.max_context_tokens, limits.context_tokens or info.max_context_tokens)
    remaining = context - prompt_tokens
    if remaining < 1:
        raise _too_long(
            f"The prompt has {prompt_tokens} tokens; the context holds {context}, answer included.",
            input_param,
        )
    if asked is not None and asked > remaining:
        raise _too_long(
            f"A prompt of {prompt_tokens} tokens leaves {remaining} of {context} for the answer; "
            f"{asked} were asked for.",
            maximum_param,
        )
    longest = limits.output_tokens
    if asked is not None and longest is not None and asked > longest:
        message = f"An answer may have {longest} tokens; {asked} were asked for."
        raise invalid_request(message, maximum_param)
    if asked is not None:
        return asked
    reservable = [
        (budget - prompt_tokens) // sequences
        for budget in (limits.tokens_per_minute, limits.tokens_per_day)
        if budget is not None
    ]
    room = _room(prompt_tokens, sequences, info, limits)
    bounds = [bound for bound in (default, longest, room, *reservable) if bound is not None]
    # At least 1: where not even that can be reserved, the gate says so.
    return max(1, min([remaining, *bounds]))


def _room(prompt_tokens: int, sequences: int, info: EngineInfo, limits: TenantLimits) -> int:
    """The longest output of which the pool, and the tenant's part of it, hold all `sequences`.

    They share the prompt's full blocks.
    """
    blocks = min(info.num_blocks, limits.blocks or info.num_blocks)
    shared = prompt_tokens // info.block_size
    each = shared + (blocks - shared) // sequences
    return each * info.block_size - prompt_tokens


def _too_long(message: str, param: str) -> ApiError:
    return invalid_request(message, param, "context_length_exceeded")
