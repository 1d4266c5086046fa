"""Tenants and system prompts as an operator sees them, in `/admin` and on the command line."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from tenants.records import PromptIndex, SystemPrompt, Tenant


def tenant_document(tenant: Tenant) -> dict[str, Any]:
    """A tenant without its secrets; times are ISO 8601 in UTC."""
    return {"id": tenant.id, "name": tenant.name, "created_at": _time(tenant.created_at)}


def prompt_document(prompt: SystemPrompt, index: PromptIndex | None) -> dict[str, Any]:
    """A prompt without its text; `tokens`, `blocks` and `warmed_at` are null until it is warm."""
    return {
        "name": prompt.name,
        "version": prompt.version,
        "characters": len(prompt.text),
        "created_at": _time(prompt.created_at),
        "tokens": None if index is None else index.token_count,
        "blocks": None if index is None else len(index.block_hashes),
        "warmed_at": None if index is None else _time(index.warmed_at),
    }


def _time(unix_seconds: float) -> str:
    return datetime.fromtimestamp(unix_seconds, UTC).isoformat(timespec="seconds")
