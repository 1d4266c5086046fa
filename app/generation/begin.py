"""The one way to start a generation, whichever API asks: check, admit, hand it to the engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from msgspec import structs
from transformers import PreTrainedTokenizerBase

from app.formats.tools.parser import ToolParser
from app.generation.adapters import NamedAdapters
from app.generation.answer_grammar import answer_grammar
from app.generation.comparison import Comparisons
from app.generation.engine_request import Defaults, ModelNames, engine_request, renewed
from app.generation.generation import Asked, Generation
from app.generation.pictures import RunningPictures
from app.limits.admission import Gate, Ticket
from app.limits.booking import Payable, shared_head
from app.limits.connections import Connections
from app.observe.metrics import Metrics
from app.prompt.chat_template import ChatTemplate
from app.prompt.conversation import Prompt, PromptBuilder
from app.prompt.history import History, SocketHistory
from app.prompt.sight import Sight
from app.prompt.telling import said_in
from app.request.constraint import Constraint, GrammarCheck, check_held
from app.request.request import Earlier, GenerationRequest, retold
from app.request.segments import Segment, segments_of
from app.shares import SharedRoom
from app.wire.errors import invalid_request
from app.wire.functions import Tools, pictures_in
from engine.api import EngineInfo, EngineRequest, TokenDelta
from engine.client import EngineClient
from engine.validation import check_request
from tenants.records import AdapterRecord, Principal

if TYPE_CHECKING:
    from app.generation.tracing import Tracing


Resolve = Callable[
    [GenerationRequest, str, SocketHistory | None],
    Awaitable[tuple[GenerationRequest, dict[str, bytes]]],
]
"""A tenant's request with what was said before it, and what its names of items stand for."""
Retell = Callable[[str, str, SocketHistory | None], Awaitable[Earlier]]
"""What was said up to a tenant's response."""


@dataclass(frozen=True)
class Ready:
    """A request that has all that it may use; to become a generation, or else to be released."""

    _ticket: Ticket
    _make: Callable[[], Generation]

    async def generation(self) -> Generation:
        """It as a generation, whose reader has the engine begin; released where there is none."""
        async with _released_unless_begun([self._ticket]):
            return self._make()

    async def release(self) -> None:
        """Give it back; harmless after the generation has ended."""
        await self._ticket.release()


@dataclass(frozen=True, kw_only=True)
class Generations:
    """Begins generations. Whoever has begun one must iterate its `pieces` or `close` it."""

    engine: EngineClient
    tokenizer: PreTrainedTokenizerBase
    names: ModelNames
    adapters: NamedAdapters
    sight: Sight
    pictures: RunningPictures
    template: ChatTemplate
    prompts: PromptBuilder
    history: History
    resolve: Resolve
    retell: Retell
    gate: Gate
    connections: Connections
    metrics: Metrics
    defaults: Defaults
    logprob_room: SharedRoom
    grammars: GrammarCheck
    comparisons: Comparisons
    tracing: Tracing | None

    async def begin(
        self,
        principal: Principal,
        request: GenerationRequest,
        on_socket: SocketHistory | None = None,
    ) -> Generation:
        """Start what a request asks for; `on_socket` holds turns that its socket alone knows.

        Raises `ApiError`, `RequestRefused`, `EngineUnavailable` or `StoreUnavailable`: nothing runs
        then, and the tenant has used up one request at most.
        """
        (ready,) = await self.prepare(principal, [request], on_socket)
        return await ready.generation()

    async def prepare(
        self,
        principal: Principal,
        requests: Sequence[GenerationRequest],
        on_socket: SocketHistory | None = None,
    ) -> list[Ready]:
        """Have requests that belong together admitted, all or none, before any of them runs.

        Each must become a generation or be released. Raises what `begin` raises: nothing runs then,
        and the tenant has used up as many requests at most.
        """
        asked_at = perf_counter()
        self.gate.check()
        info = self.engine.info
        for request in requests:
            self.names.adapter_in(request.model)
            request.candidates.check(info.max_running_sequences)
            check_held(request.constraint, request.tools, info)
            self.sight.check(principal.tenant, pictures_in(said_in(request.items)))
        streams = [request.candidates.width for request in requests]
        tickets = await self.gate.admit_all(principal, streams)
        async with _released_unless_begun(tickets):
            found = [await self._asked(principal, one, on_socket, info) for one in requests]
            await self.gate.reserve(
                tickets, [_payable(principal, asked, info) for asked, _ in found]
            )
            make = partial(self._generation, principal, on_socket)
            return [
                Ready(ticket, partial(make, asked, ticket, asked_at, named))
                for ticket, (asked, named) in zip(tickets, found, strict=True)
            ]

    async def _asked(
        self,
        principal: Principal,
        request: GenerationRequest,
        on_socket: SocketHistory | None,
        info: EngineInfo,
    ) -> tuple[Asked, dict[str, bytes]]:
        """What the engine is to be asked, and what names of items in the request stand for."""
        request, named = await self.resolve(request, principal.tenant.id, on_socket)
        prompt = await self._prompt(principal, request, on_socket)
        adapter = await self._adapter(principal, request, prompt)
        use = None if adapter is None else self.adapters.use(principal, adapter, prompt.ids)
        asked_of = engine_request(principal, request, prompt, info, self.defaults, use)
        prompt = self._described(principal, request, prompt, asked_of, info)
        held = await self._held(request, asked_of, prompt, info)
        named_response, comparison = request.cache.compare_with, None
        if named_response is not None:
            comparison = await self.comparisons.compare(named_response, prompt, asked_of, on_socket)
        asked = Asked(
            request=held,
            prompt=prompt,
            comparison=comparison,
            stop=request.sampling.stop_strings,
            engine_kind=info.hash_extras,
            tools=request.tools,
            grammar_field=request.constraint.field if request.constraint else "tools",
            adapter=None if adapter is None else adapter.called_by(principal.tenant.id),
        )
        return asked, named

    async def _adapter(
        self, principal: Principal, request: GenerationRequest, prompt: Prompt
    ) -> AdapterRecord | None:
        """That which a request means, as hardly any does."""
        says = (self.names.adapter_in(request.model), prompt.origin, principal.tenant.adapter)
        if says == (None, None, None):
            return None
        return await self.adapters.meant(principal, request.model, prompt.origin)

    async def go_on(self, principal: Principal, interrupted: Asked) -> Generation:
        """Go on with a generation that was suspended, in this process or another.

        Raises what `begin` raises.
        """
        asked_at = perf_counter()
        self.gate.check()
        info = self.engine.info
        adapter = None
        if interrupted.request.adapter is not None:
            record = await self.adapters.allow(principal, interrupted.request.adapter)
            adapter = record.called_by(principal.tenant.id)
        again = renewed(interrupted.request, principal, interrupted.prompt, info)
        (ticket,) = await self.gate.admit_all(principal, [again.num_lines])
        async with _released_unless_begun([ticket]):
            asked = replace(interrupted, request=again, adapter=adapter)
            await ticket.reserve(_payable(principal, asked, info))
            return self._generation(principal, None, asked, ticket, asked_at)

    async def count(
        self,
        principal: Principal,
        request: GenerationRequest,
        on_socket: SocketHistory | None = None,
    ) -> int:
        """The tokens of a request's prompt. Raises what `begin` raises, but for the engine's."""
        async with self.counted(principal):
            await self.adapters.meant(principal, request.model)
            request, _ = await self.resolve(request, principal.tenant.id, on_socket)
            return len((await self._prompt(principal, request, on_socket)).ids)

    @asynccontextmanager
    async def counted(self, principal: Principal) -> AsyncIterator[None]:
        """Have something done that counts as a request, but generates nothing. Raises `ApiError`
        where the tenant may have no more requests.
        """
        self.gate.check()
        ticket = await self.gate.admit(principal)
        try:
            yield
        finally:
            await ticket.release()

    async def _prompt(
        self, principal: Principal, request: GenerationRequest, on_socket: SocketHistory | None
    ) -> Prompt:
        if request.raw is not None:
            return await self.prompts.raw(principal, request, request.raw)
        if request.tools.names:
            self.template.tools.check()
        if request.previous_response_id is None:
            prompt = await self.prompts.first_turn(principal, request)
        else:
            named = principal.tenant.id, request.previous_response_id, on_socket
            previous = await self.history.continued(*named)
            if await self.prompts.goes_on(principal, request, previous):
                prompt = await self.prompts.next_turn(principal, request, previous)
            else:
                earlier = await self.retell(*named)
                anew = retold(request, earlier, previous.system)
                prompt = await self.prompts.first_turn(principal, anew)
        frame = self.template.frame(request.template_options)
        return replace(
            prompt,
            opened=self.template.reasoning.opened(prompt.ids),
            said_tokens=len(prompt.ids) - frame.num_opening,
        )

    def _described(
        self,
        principal: Principal,
        request: GenerationRequest,
        prompt: Prompt,
        asked: EngineRequest,
        info: EngineInfo,
    ) -> Prompt:
        """The prompt with what later ones are compared with."""
        if prompt.said_tokens is None:
            return prompt
        frame = self.template.frame(request.template_options)
        constraint = request.constraint
        made_of: dict[Segment, object] = {
            "key": request.sampling.prompt_cache_key or None,
            "end_user": prompt.end_user,
            "tools": prompt.tools,
            "text_format": None if constraint is None else constraint.grammar,
            "effort": [request.template_options.effort, request.template_options.named],
            "effort_text": frame.before,
            "verbosity": request.verbosity or "medium",
            "context": prompt.context,
            "system": prompt.system,
        }
        segments = segments_of(principal.tenant, asked, info, prompt.said_tokens, made_of)
        return replace(prompt, segments=segments)

    async def _held(
        self, request: GenerationRequest, asked: EngineRequest, prompt: Prompt, info: EngineInfo
    ) -> EngineRequest:
        """What the engine is asked, with the grammar that the answer is held to."""
        tenant, key = asked.tenant, asked.namespaces.private_key
        request = await self._with_checked_tools(request, tenant, key)
        beside = None
        if request.constraint is not None:
            constraint = request.constraint.of_model(self.template.tokens_in)
            beside = await self.grammars.check(tenant, key, constraint)
        problem_of = partial(self.grammars.problem_of, tenant, key)
        bounded = None if request.reasoning_tokens is None else prompt.opened
        if bounded is not None and not info.has_grammars:
            message = "This model's reasoning cannot be held to a number of tokens."
            raise invalid_request(message, "thinking.budget_tokens", "unsupported_value")
        grammar = await answer_grammar(request, self.template, beside, problem_of, bounded)
        if grammar is None:
            return asked
        grammar = self.template.reasoning.before(grammar, prompt.opened, request.reasoning_tokens)
        held = structs.replace(asked, grammar=grammar)
        check_request(held, info)
        return held

    async def _with_checked_tools(
        self, request: GenerationRequest, tenant: str, key: bytes
    ) -> GenerationRequest:
        """A request whose tools' grammars, of those that may be called, the engine can read."""
        tools = request.tools
        if not tools.raws:
            return request
        functions = list(tools.functions)
        for at, one in enumerate(functions):
            if one.grammar is not None and one.name in tools.raws:
                constraint = Constraint(one.grammar, request.names.definition.format(at))
                grammar = await self.grammars.check(tenant, key, constraint)
                functions[at] = replace(one, grammar=grammar)
        return replace(request, tools=replace(tools, functions=functions))

    def _generation(
        self,
        principal: Principal,
        on_socket: SocketHistory | None,
        asked: Asked,
        ticket: Ticket,
        asked_at: float,
        named: Mapping[str, bytes] = MappingProxyType({}),
    ) -> Generation:
        """What the engine hears of as soon as it is read.

        It runs from now on for all but the engine: it counts, and can be ended.
        """
        # The protocol promises `aclose` in words; every engine implements it as a generator.
        deltas = cast("AsyncGenerator[TokenDelta, None]", self.engine.generate(asked.request))
        generation = Generation(
            self.engine,
            self.tokenizer,
            self.metrics,
            asked,
            ticket,
            self.logprob_room,
            deltas,
            self._new_reader,
            self.template.reasoning.sifter,
        )
        generation.timeline.asked = asked_at
        generation.named = named
        if asked.request.pictures:
            generation.end_with(self.pictures.held(asked, on_socket))
        generation.end_with(self.connections.stream(principal, generation.fail))
        if self.tracing is not None:
            generation.end_with(self.tracing.following(generation))
        return generation

    def _new_reader(self, tools: Tools) -> ToolParser | None:
        """What finds the calls in one answer; `None` where there can be none."""
        return self.template.tools.reader(tools) if tools.names else None


def _payable(principal: Principal, asked: Asked, info: EngineInfo) -> Payable:
    head = shared_head(asked.request, principal.group, info.block_size)
    return Payable(asked.request, head, asked.adapter or "")


@asynccontextmanager
async def _released_unless_begun(tickets: Sequence[Ticket]) -> AsyncIterator[None]:
    """Give back what requests have taken that become no generation."""
    try:
        yield
    except BaseException:
        for ticket in tickets:
            await ticket.release()
        raise
