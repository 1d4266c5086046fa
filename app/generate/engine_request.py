"""What the engine is asked for a conversation: its ids, who may share their blocks, and how far."""

from __future__ import annotations

import secrets

import msgspec

from app.generate.output_budget import output_budget
from app.generate.request import GenerationRequest
from app.generate.sampling import sampling_params
from app.prompt.conversation import Prompt
from engine.api import EngineInfo, EngineRequest, Namespaces, TenantShare
from engine.blocks.hashing import derive_key
from engine.validation import check_request
from tenants.records import Principal, Tenant


def engine_request(
    principal: Principal,
    request: GenerationRequest,
    prompt: Prompt,
    info: EngineInfo,
    default_max_tokens: int | None,
) -> EngineRequest:
    """What the engine is asked for a request whose conversation is `prompt`.

    A beam search takes no temperature. Raises `ApiError` for an answer that cannot be so long and
    for token ids outside the vocabulary, and `RequestRefused` for whatever else the engine would
    refuse: a stream begins only once nothing can be refused any more.
    """
    tenant, candidates = principal.tenant, request.candidates
    max_tokens = output_budget(len(prompt.ids), request, default_max_tokens, info, tenant.limits)
    sampling = sampling_params(request.sampling, info, max_tokens, request.logprobs)
    if candidates.beam is not None:
        sampling = msgspec.structs.replace(sampling, temperature=0.0)
    asked = EngineRequest(
        request_id=request.id,
        tenant=tenant.id,
        prompt=prompt.ids,
        namespaces=_namespaces(principal, prompt, _private_key(tenant, request, prompt)),
        sampling=sampling,
        share=tenant_share(tenant),
        cache=tenant.cache == "on",
        num_sequences=candidates.num_sequences,
        beam=candidates.beam,
    )
    check_request(asked, info)
    return asked


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
        cache=tenant.cache == "on",
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
    )


def _private_key(tenant: Tenant, request: GenerationRequest, prompt: Prompt) -> bytes:
    """Of the end user's conversations, or of those under the same `prompt_cache_key`."""
    user, cache_key = prompt.end_user, request.sampling.prompt_cache_key
    private_key = tenant.namespace_key if user is None else tenant.user_key(user)
    if cache_key is None:
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
