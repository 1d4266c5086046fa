"""The parts of a running service, as the endpoints find them in `app.state.service`."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request

from app.background.booking import LeaseBooking, LeftUsage
from app.background.demonstration import Demonstration
from app.background.supervisor import Supervisor
from app.background.warming import Warmer
from app.chat.stored import StoredCompletions
from app.generation.adapters import NamedAdapters
from app.generation.begin import Generations
from app.generation.engine_request import ModelNames
from app.late_writes import LateWrites
from app.limits.admission import Gate
from app.limits.auth import authenticate
from app.limits.connections import Connections
from app.limits.draining import Draining
from app.observe.metrics import Metrics
from app.prompt.chat_template import ChatTemplate
from app.prompt.history import History
from app.prompt.system_prompts import RegisteredPrompts
from app.prompt.telling import Telling
from app.responses.conversations import ConversationStore
from app.responses.registry import Responses
from app.stores import Stores
from app.transport.bodies import Bodies, Intake
from app.transport.bounds import Bounds
from app.workers import Workers
from engine.client import EngineClient
from tenants.records import Principal
from tenants.usage.prices import PriceList


@dataclass(frozen=True, kw_only=True)
class Service:
    """Built once by `app.assembly.service.create_app`."""

    engine: EngineClient
    stores: Stores
    names: ModelNames
    adapters: NamedAdapters
    history: History
    conversations: ConversationStore
    completions: StoredCompletions
    late_writes: LateWrites
    gate: Gate
    prices: PriceList
    template: ChatTemplate
    telling: Telling
    registered: RegisteredPrompts
    generations: Generations
    responses: Responses
    connections: Connections
    warmer: Warmer
    lease_booking: LeaseBooking
    left_usage: LeftUsage
    demonstration: Demonstration
    workers: Workers
    intake: Intake
    bodies: Bodies
    draining: Draining
    bounds: Bounds
    metrics: Metrics
    supervisor: Supervisor
    started_at: int


async def identified(request: Request) -> tuple[Service, Principal]:
    """The service, and whom the request's key belongs to. Raises what `authenticate` raises."""
    service: Service = request.app.state.service
    return service, await authenticate(service.stores.tenants, request)
