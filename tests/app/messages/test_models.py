"""`GET /v1/models`, as Anthropic's own client speaks it."""

from __future__ import annotations

import anthropic
import httpx
import pytest

from app.messages.models import model_page, sent_model
from app.wire.errors import ApiError
from tests.app.conftest import MODEL, World
from tests.app.messages.asking import client

SERVED = [
    sent_model({"id": name, "created": 86_400, "context_window": 100}) for name in ("a", "b", "c")
]


async def test_models_are_listed_in_its_words(world: World) -> None:
    async with client(world) as asking:
        page = await asking.models.list()
        (model,) = [one async for one in page]
        assert await asking.models.retrieve(MODEL) == model
        assert (await asking.beta.models.retrieve(MODEL)).id == MODEL
    assert (model.type, model.id, model.display_name, model.lifecycle) == (
        "model",
        MODEL,
        MODEL,
        "active",
    )
    assert model.created_at.tzinfo is not None
    assert model.max_tokens == world.engine.info.max_context_tokens - 1
    assert (page.has_more, page.first_id, page.last_id) == (False, MODEL, MODEL)


async def test_others_are_told_of_them_as_ever(world: World) -> None:
    async with httpx.AsyncClient(base_url=world.base_url, headers=world.headers()) as plain:
        listed = (await plain.get("/v1/models")).json()
        (model,) = listed["data"]
        assert (listed["object"], model["object"]) == ("list", "model")
        assert (await plain.get("/v1/models/none")).json()["error"]["code"] == "model_not_found"


async def test_refusals_are_in_its_shape_too(world: World) -> None:
    async with client(world) as asking:
        with pytest.raises(anthropic.NotFoundError) as refused:
            await asking.models.retrieve("none")
        body = refused.value.body
        assert isinstance(body, dict)
        assert (body["type"], body["error"]["type"]) == ("error", "not_found_error")
        assert refused.value.request_id == body["request_id"]
        with pytest.raises(anthropic.BadRequestError, match="limit"):
            await asking.models.list(limit=0)
        with pytest.raises(anthropic.BadRequestError, match="latest"):
            await asking.models.list(extra_headers={"anthropic-version": "latest"})


@pytest.mark.parametrize(
    ("query", "ids", "has_more"),
    [
        ({}, "abc", False),
        ({"limit": "2"}, "ab", True),
        ({"limit": "2", "after_id": "b"}, "c", False),
        ({"limit": "1", "after_id": "a"}, "b", True),
        ({"limit": "1", "before_id": "c"}, "b", True),
        ({"before_id": "c", "after_id": "a"}, "b", False),
        ({"lifecycle[]": "active"}, "abc", False),
        ({"lifecycle": "retired"}, "", False),
        ({"after_id": "c"}, "", False),
        ({"lifecycle": "retired", "after_id": "a"}, "", False),
    ],
)
def test_a_page_is_the_part_that_was_asked_for(
    query: dict[str, str], ids: str, has_more: bool
) -> None:
    page = model_page(list(query.items()), SERVED)
    assert ("".join(one.id for one in page.data), page.has_more) == (ids, has_more)
    assert (page.first_id, page.last_id) == ((ids[0], ids[-1]) if ids else (None, None))


@pytest.mark.parametrize("query", [("limit", "1001"), ("after_id", "d"), ("page", "2")])
def test_a_page_that_cannot_be_is_refused_by_name(query: tuple[str, str]) -> None:
    with pytest.raises(ApiError) as refused:
        model_page([query], SERVED)
    assert refused.value.param == query[0]
