"""The parts of a running service, as the endpoints find them in `app.state.service`."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from app.admission import Gate
from app.draining import Draining
from app.limits import ServiceLimits
from app.metrics import Metrics
from app.presence import Presence
from app.responses import ModelNames, Responses
from app.stores import Stores
from app.turns import TurnBuilder
from app.warming import Warmer
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
