"""The parts of a running service, as the endpoints find them in `app.state.service`."""

from __future__ import annotations

from dataclasses import dataclass

from app.admin.write_rate import WriteRate
from app.chat.stored import StoredCompletions
from app.conversations.store import ConversationStore
from app.generate.admission import Gate
from app.generate.begin import Generations, ModelNames
from app.prompt.conversation import PromptBuilder
from app.prompt.history import History
from app.prompt.system_prompts import RegisteredPrompts
from app.prompt.template import ChatTemplate
from app.responses.registry import Responses
from app.stores import Stores
from app.transport.bounds import Bounds
from app.transport.intake import Intake
from app.upkeep.connections import Connections
from app.upkeep.draining import Draining
from app.upkeep.late_writes import LateWrites
from app.upkeep.lease_booking import LeaseBooking
from app.upkeep.left_usage import LeftUsage
from app.upkeep.metrics import Metrics
from app.upkeep.supervision import Supervisor
from app.upkeep.warming import Warmer
from app.upkeep.workers import Workers
from engine.client import EngineClient
from tenants.prices import Prices


@dataclass(frozen=True, kw_only=True)
class Service:
    """Built once by `app.service.create_app`."""

    engine: EngineClient
    stores: Stores
    names: ModelNames
    history: History
    conversations: ConversationStore
    completions: StoredCompletions
    late_writes: LateWrites
    gate: Gate
    prices: Prices
    template: ChatTemplate
    prompts: PromptBuilder
    registered: RegisteredPrompts
    generations: Generations
    responses: Responses
    connections: Connections
    warmer: Warmer
    lease_booking: LeaseBooking
    left_usage: LeftUsage
    write_rate: WriteRate
    workers: Workers
    intake: Intake
    draining: Draining
    bounds: Bounds
    metrics: Metrics
    supervisor: Supervisor
    started_at: int
