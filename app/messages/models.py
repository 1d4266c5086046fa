"""The models that are served, as the Messages API lists them: a page, and one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from app.wire.errors import invalid_request
from app.wire.message_events import ModelPage, SentModel

_MOST = 1000
_USUAL = 20


def sent_model(model: dict[str, Any]) -> SentModel:
    """A model as OpenAI describes it, in this API's words. One token of the context at least is
    the prompt's, and one the answer's.
    """
    return SentModel(
        id=model["id"],
        display_name=model["id"],
        created_at=datetime.fromtimestamp(model["created"], UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        max_input_tokens=model["context_window"] - 1,
        max_tokens=model["context_window"] - 1,
    )


def model_page(query: Sequence[tuple[str, str]], models: Sequence[SentModel]) -> ModelPage:
    """The part of `models` that a query asks for. Raises `ApiError` naming what it cannot be."""
    given, stages = {"limit": str(_USUAL)}, set[str]()
    for name, value in query:
        if name in ("lifecycle", "lifecycle[]"):
            stages.add(value)
        elif name in ("limit", "after_id", "before_id"):
            given[name] = value
        elif name != "beta":  # its clients' mark of what may change: the same here
            raise invalid_request(f"Unknown parameter: '{name}'.", name, "unknown_parameter")
    found = list(models) if not stages or "active" in stages else []
    ids, limit = [one.id for one in models], _limit(given["limit"])
    for name in ("after_id", "before_id"):
        if name in given and given[name] not in ids:
            raise invalid_request(f"There is no model '{given[name]}' in this list.", name)
    if "after_id" in given:
        found = found[ids.index(given["after_id"]) + 1 :]
    if "before_id" in given:
        found = [one for one in found if ids.index(one.id) < ids.index(given["before_id"])]
    is_backward = "before_id" in given and "after_id" not in given
    data = found[-limit:] if is_backward else found[:limit]
    return ModelPage(
        data=data,
        has_more=len(found) > len(data),
        first_id=data[0].id if data else None,
        last_id=data[-1].id if data else None,
    )


def _limit(given: str) -> int:
    if given.isascii() and given.isdigit() and len(given) < 5 and 1 <= int(given) <= _MOST:
        return int(given)
    raise invalid_request(f"'limit' is a number from 1 to {_MOST}.", "limit")
