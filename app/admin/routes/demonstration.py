"""`/admin/demonstration`: a minute of three tenants on a small part of the cache, for the wall."""

from __future__ import annotations

from http import HTTPStatus

from pydantic import Field

from app.admin.documents import Document
from app.admin.parameters import Asking, Served
from app.admin.problems import Problem
from app.admin.route import operations
from app.background.demonstration import DemonstrationRefused, Shown

router = operations("Live view", "/demonstration")


class DemonstrationCaption(Document):
    """What is happening."""

    at: float = Field(description="Since when, in Unix time.")
    text: str


class DemonstrationState(Document):
    """The demonstration that is under way, or else the last one of this process."""

    running: bool = Field(description="Until its tenants are removed.")
    by: str | None = Field(description="Who began it; null: there was none.")
    began_at: float | None = Field(description="Unix time.")
    ends_at: float | None = Field(description="Unix time; it may end earlier.")
    tenants: list[str]
    captions: list[DemonstrationCaption] = Field(
        description="So far; none where it runs in another process."
    )


@router.get("")
async def show_demonstration(service: Served) -> DemonstrationState:
    """Show what is being demonstrated."""
    return _state(*await service.demonstration.current())


@router.post("", status_code=HTTPStatus.ACCEPTED)
async def begin_demonstration(service: Served, by: Asking) -> DemonstrationState:
    """Begin a demonstration.

    For about a minute three tenants, `demo-...`, ask under long prompts, and the wall shows
    sharing, a fork, pressure, a stream that goes on, and an eviction. Each may hold 64 blocks at
    most; the cache has to have as many free ones. They are removed at the end with all that they
    had and used. 409 says why none can begin now.
    """
    try:
        return _state(await service.demonstration.begin(by.name), is_running=True)
    except DemonstrationRefused as refused:
        raise Problem(HTTPStatus.CONFLICT, str(refused), code="no_demonstration") from refused


@router.delete("", status_code=HTTPStatus.NO_CONTENT)
async def end_demonstration(service: Served) -> None:
    """End the demonstration now, if one is under way.

    Its tenants are gone some seconds later.
    """
    if not await service.demonstration.end():
        detail = "It runs in another process of the service, and ends by itself."
        raise Problem(HTTPStatus.CONFLICT, detail, code="demonstration_elsewhere")


def _state(shown: Shown | None, is_running: bool) -> DemonstrationState:
    if shown is None:
        return DemonstrationState(
            running=False, by=None, began_at=None, ends_at=None, tenants=[], captions=[]
        )
    captions = [DemonstrationCaption(at=one.at, text=one.text) for one in shown.captions]
    return DemonstrationState.of(shown.record, running=is_running, captions=captions)
