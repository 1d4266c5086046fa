"""A request's conversation as token ids: a first turn whole, a later one behind the ids so far."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from msgspec import structs

from app.prompt.breakpoints import moved
from app.prompt.chat_template import ChatTemplate
from app.prompt.history import Turn
from app.prompt.picture_style import Shown, behind_cut
from app.prompt.reasoning_style import Aside, Opened, without_asides
from app.prompt.sealing import PromptOrigin
from app.prompt.system_prompts import RegisteredPrompts, SystemText
from app.prompt.telling import Telling, said_in
from app.prompt.truncation import without_middle_ids
from app.request.request import GenerationRequest, Item, ItemName, SealedSummary
from app.request.segments import Segments, digest
from app.request.template_options import TemplateOptions
from app.wire.errors import ContextExceeded, invalid_request
from app.wire.functions import FunctionCall, Message, Picture, check_results, pictures_in
from app.wire.prompt_cache import MOST_WRITTEN
from tenants.records import Principal, Tenant

_TRUNCATIONS = 8
"""How often a conversation is shortened at most, each time by more."""
_ANSWER_PART = 8
"""A truncated prompt leaves such a part of the context to an answer that names no length."""


@dataclass(frozen=True)
class Prompt:
    """The prompt of one turn: ids, how many of them are a registered prompt's, and the system text.

    `shared_owner` is whose prompt that is, see `SystemText`, `end_user` whom the conversation
    belongs to, and `origin` the registered prompt that it is under. At `starts` later requests of
    the conversation have begun, and at `asides` lies what earlier answers have reasoned. `tools`
    tells which functions it describes. `opened` says how it begins the answer. So many of its ids
    lie before each of its last `breakpoints`, and `said_tokens` before the beginning of an answer,
    which the next turn may write otherwise. Where there is to be no answer, `said` are the ids of
    what is said, without the beginning of one. `context` tells what of the conversation was summed
    up or left out, and `segments` what later prompts are compared with. Its `pictures` come in the
    order of their tokens; those that this turn has `sent` are by their digests.
    """

    ids: list[int]
    shared_tokens: int = 0
    shared_owner: str = ""
    system: str | None = None
    end_user: str | None = None
    origin: PromptOrigin | None = None
    starts: list[int] = field(default_factory=list)
    tools: bytes = b""
    asides: list[Aside] = field(default_factory=list)
    opened: Opened | None = None
    breakpoints: list[int] = field(default_factory=list)
    said_tokens: int | None = None
    said: list[int] | None = None
    context: bytes = b""
    segments: Segments | None = None
    pictures: list[Shown] = field(default_factory=list)
    sent: dict[bytes, Picture] = field(default_factory=dict)


class PromptBuilder:
    """Builds the prompts of turns."""

    def __init__(
        self, template: ChatTemplate, registered: RegisteredPrompts, telling: Telling
    ) -> None:
        self._template = template
        self._registered = registered
        self._telling = telling

    async def raw(
        self, principal: Principal, request: GenerationRequest, raw: str | Sequence[int]
    ) -> Prompt:
        """A prompt without a template. Raises `ApiError` naming what the request calls it."""
        param, tenant = request.names.items, principal.tenant.id
        if isinstance(raw, str):
            ids = await self._template.text_ids(tenant, raw, param)
        else:
            self._template.check_ids(raw, param)
            ids = list(raw)
        if not ids:
            raise invalid_request("The prompt has no tokens.", param)
        return Prompt(ids, end_user=request.sampling.end_user)

    async def first_turn(self, principal: Principal, request: GenerationRequest) -> Prompt:
        """The prompt of a conversation that begins.

        The system text is the registered prompt that the request names, which then replaces the
        one that a summary was made under; or its instructions, or else the summary's prompt, or
        the leading system message. Raises `ApiError` naming the field at fault.
        """
        earlier = request.earlier
        items = [*earlier.items, *request.items]
        # A system text alone can be computed before anything is asked.
        is_begun = request.prompt is not None or request.instructions is not None
        unsaid = request.max_tokens == 0 and is_begun
        messages, recalled = await self._telling.messages(
            principal,
            items,
            request.names,
            len(earlier.items),
            end_user=request.sampling.end_user or earlier.end_user,
            cache_key=request.sampling.prompt_cache_key,
            unsaid=unsaid,
        )
        waiting = check_results(said_in(earlier.items), (), "conversation")
        check_results(said_in(request.items), waiting, request.names.items)
        system: SystemText | None = None
        if request.prompt is not None:
            if request.instructions is not None:
                raise invalid_request("'instructions' cannot go with 'prompt'.", "instructions")
            system = await self._registered.resolve(principal, request.prompt)
            messages.insert(0, {"role": "system", "content": system.text})
        else:
            if recalled is not None:
                messages.insert(0, {"role": "system", "content": recalled.text})
            if request.instructions is not None:
                messages.insert(0, {"role": "system", "content": request.instructions})
            elif recalled is not None:
                system = recalled
            if not request.truncates:
                self._template.check_length(messages, request.longest_field)
            if system is None and messages[0]["role"] == "system":
                system = await self._registered.recognize(principal, messages[0]["content"])
        prompt = await self._first_prompt(principal.tenant, request, messages)
        if system is None:
            return prompt
        # A prompt that is named replaces the one that a summary was made under.
        origin = (system if request.prompt is not None else recalled or system).origin
        return replace(
            prompt,
            shared_tokens=await self._registered.shared_tokens(system, prompt.ids),
            shared_owner=system.owner,
            system=system.text,
            origin=origin,
        )

    async def next_turn(
        self, principal: Principal, request: GenerationRequest, previous: Turn
    ) -> Prompt:
        """The prompt of a later turn: the ids so far, and the new messages after them.

        The conversation keeps its system text and its tools, which the request `goes_on` with.
        """
        items, end_user = request.items, request.sampling.end_user or previous.end_user
        messages, recalled = await self._telling.messages(
            principal,
            items,
            request.names,
            num_pictures=len(previous.pictures),
            end_user=end_user,
            cache_key=request.sampling.prompt_cache_key,
            unsaid=previous.is_unanswered,
        )
        calls = None if previous.is_unanswered else previous.calls
        check_results(messages, [call.id for call in calls or ()], request.names.items)
        if recalled is not None and recalled.text != previous.system:
            messages.insert(0, {"role": "system", "content": recalled.text})
        pictures = pictures_in(messages)
        begun = self._without_reasoning(previous, messages, calls or (), request.template_options)
        tenant, names, options = principal.tenant, request.names, request.template_options
        write = partial(
            self._template.continuation_ids,
            tenant.id,
            begun.ids,
            messages,
            names.items,
            calls,
            options,
        )
        ids = await write()
        render = self._template.later_rendering(begun.ids, names.items, calls, options)
        marks = await self._template.breakpoints(tenant.id, ids, messages, render, begun.ids)
        prompt = replace(
            begun,
            ids=ids,
            end_user=end_user,
            # A call's result belongs to the turn of the call: there is no cut between the two.
            starts=begun.starts if _goes_on(messages) else [*begun.starts, len(begun.ids)],
            breakpoints=[*begun.breakpoints, *marks][-MOST_WRITTEN:],
            said=await write(opens=False) if request.max_tokens == 0 else None,
            context=_context(tenant, previous.context, items),
            pictures=[
                *begun.pictures,
                *self._template.pictures.shown(ids, len(begun.ids), pictures, request.id),
            ],
            sent=_sent(pictures),
        )
        room = self._room(tenant, request)
        if request.truncates and len(ids) > room:
            return self._truncated(tenant, prompt, room)
        return prompt

    async def goes_on(
        self, principal: Principal, request: GenerationRequest, previous: Turn
    ) -> bool:
        """Whether a request has no other beginning than the conversation: others would rewrite the
        start of the ids. Raises `ApiError` for a prompt that is not there.
        """
        system = request.instructions
        if request.prompt is not None:
            system = (await self._registered.resolve(principal, request.prompt)).text
        has_tools = not request.tools.told or request.tools.digest == previous.tools
        return has_tools and system in (None, previous.system)

    def _without_reasoning(
        self,
        previous: Turn,
        messages: Sequence[Message],
        calls: Sequence[FunctionCall],
        options: TemplateOptions,
    ) -> Prompt:
        """A conversation so far, without what was reasoned where the template leaves that out."""
        ids, asides, num_starts = previous.ids, previous.asides, len(previous.starts)
        shown, num_shown = previous.pictures, len(previous.pictures)
        positions = [one.start for one in shown] + [*previous.starts, *previous.breakpoints]
        if asides and messages and not self._template.keeps_reasoning(messages, calls, options):
            ids, positions = without_asides(ids, asides, positions)
            asides = []
        return Prompt(
            ids,
            previous.shared_tokens,
            previous.shared_owner,
            previous.system,
            origin=previous.origin,
            starts=positions[num_shown:][:num_starts],
            tools=previous.tools,
            asides=asides,
            breakpoints=positions[num_shown + num_starts :],
            pictures=[
                structs.replace(one, start=at) for one, at in zip(shown, positions, strict=False)
            ],
        )

    def _truncated(self, tenant: Tenant, prompt: Prompt, room: int) -> Prompt:
        """A later turn's prompt without so much of its middle that `room` is enough."""
        special = self._template.special_ids
        ids, starts = without_middle_ids(prompt.ids, prompt.starts, room, special)
        said, moved_by = prompt.said, len(ids) - len(prompt.ids)
        cut = (prompt.starts[0], starts[0] - moved_by) if moved_by else (0, 0)
        return replace(
            prompt,
            ids=ids,
            starts=starts,
            pictures=list(behind_cut(prompt.pictures, *cut, moved_by)),
            asides=[],  # they lie elsewhere then, and stay
            breakpoints=moved(prompt.breakpoints, prompt.ids, ids),
            said=said and without_middle_ids(said, prompt.starts, room, special)[0],
            context=_context(tenant, prompt.context, (), len(prompt.ids) - len(ids)),
        )

    async def _first_prompt(
        self, tenant: Tenant, request: GenerationRequest, messages: list[Message]
    ) -> Prompt:
        """The prompt of a conversation; where it is too long and may be truncated, of what is left.

        Raises what `ChatTemplate.prompt_ids` raises.
        """
        param, tools, options = request.names.items, request.tools, request.template_options
        ask = partial(
            self._template.prompt_ids,
            tenant.id,
            param=param,
            longest=request.longest_field,
            tools=tools,
            options=options,
        )
        ids, left = await self._first_ids(tenant, request, messages, ask)
        render = self._template.rendering(param, tools, options)
        pictures = pictures_in(left)
        return Prompt(
            ids,
            end_user=request.sampling.end_user or request.earlier.end_user,
            pictures=list(self._template.pictures.shown(ids, 0, pictures, request.id)),
            sent=_sent(pictures),
            tools=tools.digest,
            breakpoints=await self._template.breakpoints(tenant.id, ids, left, render),
            said=await ask(left, opens=False) if request.max_tokens == 0 else None,
            context=_context(
                tenant, b"", [*request.earlier.items, *request.items], len(messages) - len(left)
            ),
        )

    async def _first_ids(
        self,
        tenant: Tenant,
        request: GenerationRequest,
        messages: list[Message],
        ask: Callable[[list[Message]], Awaitable[list[int]]],
    ) -> tuple[list[int], list[Message]]:
        """What `ask` makes of the messages, or of those that are left, and these messages."""
        room = left = self._room(tenant, request)
        for _ in range(_TRUNCATIONS if request.truncates and room > 0 else 0):
            with contextlib.suppress(ContextExceeded):
                ids = await ask(messages)
                if len(ids) <= room:
                    return ids, messages
            # Templates write more than the messages: what is left may still be too long.
            messages = await self._template.shortened(tenant.id, messages, left)
            left -= room // _TRUNCATIONS
        return await ask(messages), messages

    def _room(self, tenant: Tenant, request: GenerationRequest) -> int:
        """Tokens of the context that a prompt may have, which leaves the answer some."""
        context = self._template.context_tokens
        context = min(context, tenant.limits.context_tokens or context)
        return context - (request.max_tokens or context // _ANSWER_PART)


def _sent(pictures: Sequence[Picture]) -> dict[bytes, Picture]:
    """Pictures by their digests, without their URLs: these may be longer than the files."""
    return {one.digest: replace(one, url="") for one in pictures}


def _context(
    tenant: Tenant, before: bytes, items: Sequence[Item | ItemName], left_out: int = 0
) -> bytes:
    """What tells a conversation's context from another one's; nothing where it is all there."""
    summaries = [item.sealed for item in items if isinstance(item, SealedSummary)]
    if not summaries and not left_out:
        return before
    return digest(tenant, "context", [before, summaries, left_out])


def _goes_on(messages: Sequence[Message]) -> bool:
    """Whether they belong to the turn before."""
    return not messages or "call_id" in messages[0]
