"""What the engine is asked: a conversation's ids, who shares their blocks, of what, and how far."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from hashlib import blake2b

import msgspec

from app.prompt.conversation import Prompt
from app.request.cache_wish import cache_policy
from app.request.request import GenerationRequest
from app.wire.common import Tier
from app.wire.errors import ApiError, ContextExceeded, invalid_request
from engine.api import (
    NOTHING_CACHED,
    AdapterUse,
    EngineInfo,
    EngineRequest,
    Namespaces,
    PictureUse,
    SamplingParams,
    TenantShare,
)
from engine.blocks.hashing import derive_key
from engine.validation import check_request
from tenants.records import Principal, Tenant, TenantLimits

MAX_LOGPROBS = 262_144
"""Log-probabilities of an answer, alternatives and candidates included."""
_PRIORITIES: dict[Tier, int] = {"flex": -1, "default": 0, "priority": 1}
_NAME_BYTES = 32
_TOKEN_ID = re.compile(r"[0-9]{1,18}")
"""Few enough digits to be read: Python refuses more than 4,300 of them with an error of its own."""


@dataclass(frozen=True)
class ModelNames:
    """The served model's id, its last path segment for short, or before a colon nothing at all."""

    model_id: str

    @property
    def _own(self) -> tuple[str, str]:
        return self.model_id, self.model_id.rsplit("/", 1)[-1]

    def adapter_in(self, name: str | None) -> str | None:
        """The adapter that a model's name has behind a colon. `None`: it says nothing of one; empty
        where there is to be none.

        Raises `ApiError` 404 for another model's name.
        """
        if name is None or name in self._own:
            return None
        base, colon, adapter = name.rpartition(":")
        if not colon or base not in (*self._own, ""):
            raise self.unknown(name)
        return adapter

    def shown(self, name: str | None) -> str:
        """What an answer says of a request that has called the model so, if it may."""
        base, colon, adapter = (name or "").rpartition(":")
        is_named = colon and adapter and base in (*self._own, "") and name not in self._own
        return f"{self.model_id}:{adapter}" if is_named else self.model_id

    def unknown(self, name: str) -> ApiError:
        """Of a name that stands for nothing, or for nothing that who asks may use."""
        message = f"The model '{name}' does not exist; this service has '{self.model_id}'."
        return ApiError(404, message, code="model_not_found", param="model")


@dataclass(frozen=True, kw_only=True)
class Defaults:
    """What holds for requests that do not say: how long their answers may be, and for how long
    the blocks that they use are leased.
    """

    max_tokens: int | None = None
    lease_seconds: float = 0.0


def engine_request(
    principal: Principal,
    request: GenerationRequest,
    prompt: Prompt,
    info: EngineInfo,
    defaults: Defaults,
    adapter: AdapterUse | None = None,
) -> EngineRequest:
    """What the engine is asked for a request whose conversation is `prompt`.

    A beam search takes no temperature. What the answer is held to is not in it yet. Raises
    `ApiError` for an answer that cannot be so long and for token ids outside the vocabulary, and
    `RequestRefused` for whatever else the engine would refuse: a stream begins only once nothing
    can be refused any more.
    """
    tenant, candidates = principal.tenant, request.candidates
    default_max_tokens = defaults.max_tokens
    max_tokens = _output_budget(len(prompt.ids), request, default_max_tokens, info, tenant.limits)
    sampling = _sampling_params(request, info, max_tokens)
    if candidates.beam is not None:
        sampling = msgspec.structs.replace(sampling, temperature=0.0)
    namespaces = _namespaces(principal, prompt, _private_key(tenant, request, prompt))
    asked = EngineRequest(
        request_id=request.id,
        tenant=tenant.id,
        prompt=prompt.ids,
        namespaces=namespaces,
        sampling=sampling,
        share=tenant_share(tenant),
        cache=cache_policy(
            request.cache, prompt.breakpoints, prompt.said_tokens, tenant, defaults.lease_seconds
        ),
        num_sequences=candidates.num_sequences,
        beam=candidates.beam,
        priority=_PRIORITIES[request.sampling.tier],
        conversation=request.conversation_id or request.id,
        adapter=adapter,
        pictures=tuple(
            PictureUse(picture_name(namespaces, one.digest), one.start, one.count)
            for one in prompt.pictures
        ),
    )
    check_request(asked, info)
    return asked


def picture_name(namespaces: Namespaces, digest: bytes) -> bytes:
    """What the engine calls a picture of that digest: the name that only those can make who may
    find the blocks behind it.
    """
    key = derive_key(namespaces.private_key, "picture")
    return blake2b(digest, key=key, digest_size=_NAME_BYTES).digest()


def renewed(
    request: EngineRequest, principal: Principal, prompt: Prompt, info: EngineInfo
) -> EngineRequest:
    """An earlier request of the same tenant's as it may be made now, with an id of its own.

    Raises `RequestRefused` where this engine cannot take it any more.
    """
    tenant = principal.tenant
    again = msgspec.structs.replace(
        request,
        request_id=f"{request.request_id.partition('.')[0]}.{secrets.token_hex(4)}",
        namespaces=_namespaces(principal, prompt, request.namespaces.private_key),
        share=tenant_share(tenant),
        cache=request.cache if tenant.cache == "on" else NOTHING_CACHED,
    )
    check_request(again, info)
    return again


def tenant_share(tenant: Tenant) -> TenantShare:
    """What the engine lets a tenant have."""
    return TenantShare(
        weight=tenant.weight,
        reserved_blocks=tenant.reserved_blocks,
        max_blocks=tenant.limits.blocks,
        max_pinned_blocks=tenant.limits.pinned_blocks,
        max_leased_blocks=tenant.limits.leased_blocks,
    )


def or_default(value: float | None, default: float) -> float:
    """A number as a float, or the protocol's default where none is given."""
    return default if value is None else float(value)


def _private_key(tenant: Tenant, request: GenerationRequest, prompt: Prompt) -> bytes:
    """Of the end user's conversations, or of those under the same `prompt_cache_key`."""
    user, cache_key = prompt.end_user, request.sampling.prompt_cache_key
    private_key = tenant.namespace_key if user is None else tenant.user_key(user)
    if not cache_key:
        return private_key
    return derive_key(private_key, "prompt_cache_key", cache_key)


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


def _output_budget(
    prompt_tokens: int,
    request: GenerationRequest,
    default: int | None,
    info: EngineInfo,
    limits: TenantLimits,
) -> int:
    """How many tokens the answer may have, or each of several candidates.

    Without an explicit number: the rest of the context, within the request's or the service's
    `default`, what the tenant can reserve at once, and the blocks that all sequences together can
    have. Raises `ApiError` if prompt and answer do not fit the context, the model's or the
    tenant's, or the answer is longer than the tenant's may be.
    """
    names, asked, width = request.names, request.max_tokens, request.candidates.width
    context = min(info.max_context_tokens, limits.context_tokens or info.max_context_tokens)
    remaining = context - prompt_tokens
    if remaining < (0 if asked == 0 else 1):
        message = f"The prompt has {prompt_tokens}, and the answer needs room."
        raise ContextExceeded(context, message, request.longest_field)
    if asked is not None and asked > remaining:
        message = f"A prompt of {prompt_tokens} leaves {remaining}; {asked} were asked for."
        raise ContextExceeded(context, message, names.max_tokens)
    longest = _longest(request, limits, prompt_tokens)
    if asked is not None and longest is not None and asked > longest:
        what = "" if longest == limits.output_tokens else " with so many log-probabilities"
        message = f"An answer{what} may have {longest} tokens; {asked} were asked for."
        raise invalid_request(message, names.max_tokens)
    if asked is not None:
        return asked
    reservable = [
        (budget - prompt_tokens) // width
        for budget in (limits.tokens_per_minute, limits.tokens_per_day)
        if budget is not None
    ]
    default = request.default_max_tokens or default
    room = _room(prompt_tokens, width, info, limits)
    bounds = [bound for bound in (default, longest, room, *reservable) if bound is not None]
    # At least 1: where not even that can be reserved, the gate says so.
    return max(1, min([remaining, *bounds]))


def _longest(request: GenerationRequest, limits: TenantLimits, prompt_tokens: int) -> int | None:
    """The most tokens that the tenant's answers, and their log-probabilities, may have.

    Raises `ApiError` where a prompt alone has more of these.
    """
    left, told = MAX_LOGPROBS, None
    if request.prompt_logprobs is not None:
        left -= prompt_tokens * (1 + request.prompt_logprobs)
        if left < 0:
            most = MAX_LOGPROBS // (1 + request.prompt_logprobs)
            message = f"A prompt with so many log-probabilities may have {most} tokens"
            raise invalid_request(f"{message}; it has {prompt_tokens}.", request.names.items)
    if request.logprobs is not None:
        told = left // (request.candidates.width * (1 + request.logprobs))
    return min((most for most in (limits.output_tokens, told) if most is not None), default=None)


def _room(prompt_tokens: int, sequences: int, info: EngineInfo, limits: TenantLimits) -> int:
    """The longest output of which the pool, and the tenant's part of it, hold all `sequences`.

    They share the prompt's full blocks.
    """
    pages = info.memory_pages
    if limits.blocks is not None:
        pages = min(pages, limits.blocks * info.block_pages)
    return info.longest(pages, prompt_tokens, sequences) - prompt_tokens


def _sampling_params(
    request: GenerationRequest, info: EngineInfo, max_tokens: int
) -> SamplingParams:
    """How the engine samples. Raises `ApiError` for token ids outside the vocabulary."""
    fields = request.sampling
    extra_stops = tuple(fields.stop_token_ids or ())
    for index, token_id in enumerate(extra_stops):
        _check_token(token_id, info, f"stop_token_ids[{index}]")
    eos = () if fields.ignore_eos else info.eos_token_ids
    # A negative seed is as good as any: it maps to one non-negative 63-bit number.
    seed = secrets.randbits(63) if fields.seed is None else fields.seed & (2**63 - 1)
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=(fields.min_tokens or 0) if max_tokens else 0,
        temperature=or_default(fields.temperature, 1.0),
        top_p=or_default(fields.top_p, 1.0),
        top_k=fields.top_k or 0,
        min_p=or_default(fields.min_p, 0.0),
        presence_penalty=or_default(fields.presence_penalty, 0.0),
        frequency_penalty=or_default(fields.frequency_penalty, 0.0),
        repetition_penalty=or_default(fields.repetition_penalty, 1.0),
        logit_bias=_logit_bias(fields.logit_bias or {}, info),
        logprobs=request.logprobs,
        prompt_logprobs=request.prompt_logprobs,
        seed=seed,
        stop_token_ids=tuple(dict.fromkeys((*eos, *extra_stops))),
    )


def _logit_bias(bias: dict[str, float], info: EngineInfo) -> dict[int, float]:
    checked: dict[int, float] = {}
    for name, value in bias.items():
        param = f"logit_bias.{name}"
        if not _TOKEN_ID.fullmatch(name):
            raise invalid_request(f"'{name}' is not a token id.", param)
        _check_token(int(name), info, param)
        checked[int(name)] = float(value)
    return checked


def _check_token(token_id: int, info: EngineInfo, param: str) -> None:
    if not 0 <= token_id < info.vocab_size:
        message = f"Token id {token_id} is outside the vocabulary of {info.vocab_size}."
        raise invalid_request(message, param)
