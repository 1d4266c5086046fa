"""The parts of a running service, as the endpoints find them in `app.state.service`."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from app.generate.admission import Gate
from app.prompt.turns import TurnBuilder
from app.responses.registry import ModelNames, Responses
from app.stores import Stores
from app.transport.bounds import ServiceLimits
from app.upkeep.connections import Presence
from app.upkeep.draining import Draining
from app.upkeep.metrics import Metrics
from app.upkeep.warming import Warmer
from engine.client import EngineClient
from tenants.store import TenantStore


@dataclass(frozen=True, kw_only=True)
class Service:
    """Built once by `app.service.create_app`."""

    engine: EngineClient
    tenants: TenantStore
    tokenizer: PreTrainedTokenizerBase
    names: ModelNames
    turns: TurnBuilder
    responses: Responses
    gate: Gate
    presence: Presence
    warmer: Warmer
    draining: Draining
    stores: Stores
    limits: ServiceLimits
    metrics: Metrics
    started_at: int
