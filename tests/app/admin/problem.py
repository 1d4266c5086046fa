"""What an answer of `/admin` that is a problem says."""

from __future__ import annotations

from typing import Any

import httpx

from app.admin.problems import MEDIA_TYPE


def problem(answer: httpx.Response, status: int) -> dict[str, Any]:
    """The problem document of an answer with that status."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == MEDIA_TYPE
    document: dict[str, Any] = answer.json()
    assert document["status"] == status
    assert document["title"]
    return document


def fields(answer: httpx.Response, status: int) -> list[str]:
    """The fields that a problem with that status names."""
    return [error["field"] for error in problem(answer, status)["errors"]]
