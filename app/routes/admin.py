"""`/admin`: tenants and their system prompts, for an operator with the admin token.

Errors are RFC 9457 problem documents (`application/problem+json`) whose `errors` name the fields.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from pydantic import BaseModel, ConfigDict
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route

from app.admin_token import AdminToken
from app.documents import prompt_document, tenant_document
from app.http_io import json_response, read_json
from app.problems import Problem, as_problem
from tenants.errors import PromptNotFound
from tenants.store import TenantStore
from tenants.system_prompts import SystemPrompts

_log = logging.getLogger(__name__)

Endpoint = Callable[[Request], Awaitable[Response]]


class TenantBody(BaseModel):
    """The body of `POST /admin/tenants`; `name` is for people, and is the id by default."""

    model_config = ConfigDict(extra="forbid", strict=True)

    id: str
    name: str | None = None


class PromptBody(BaseModel):
    """The body of `PUT /admin/tenants/{id}/prompts/{name}`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: str


def admin_routes(
    tenants: TenantStore, prompts: SystemPrompts, token: AdminToken, max_body_bytes: int
) -> list[BaseRoute]:
    """The routes under `/admin`."""
    admin = _Admin(tenants, prompts, max_body_bytes)
    table: list[tuple[str, str, Endpoint]] = [
        ("POST", "/tenants", admin.create_tenant),
        ("GET", "/tenants", admin.list_tenants),
        ("GET", "/tenants/{tenant}", admin.show_tenant),
        ("DELETE", "/tenants/{tenant}", admin.delete_tenant),
        ("POST", "/tenants/{tenant}/keys/rotate", admin.rotate_key),
        ("GET", "/tenants/{tenant}/prompts", admin.list_prompts),
        ("PUT", "/tenants/{tenant}/prompts/{name}", admin.put_prompt),
        ("GET", "/tenants/{tenant}/prompts/{name}", admin.show_prompt),
        ("DELETE", "/tenants/{tenant}/prompts/{name}", admin.delete_prompt),
    ]
    routes = [
        Route(path, _guarded(endpoint, token), methods=[method]) for method, path, endpoint in table
    ]
    return [Mount("/admin", routes=routes)]


def _guarded(endpoint: Endpoint, token: AdminToken) -> Endpoint:
    """The endpoint behind the admin token, its errors as problem documents."""

    async def answer(request: Request) -> Response:
        try:
            scheme, _, given = request.headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not token.matches(given.strip()):
                raise Problem(
                    HTTPStatus.UNAUTHORIZED,
                    "Send the admin token as 'Authorization: Bearer TOKEN'.",
                )
            return await endpoint(request)
        except Exception as error:  # noqa: BLE001 - the last resort turns bugs into a logged 500
            problem = as_problem(error)
            if problem is None:
                _log.exception("%s %s failed", request.method, request.url.path)
                detail = "The service had an error; its log says more."
                problem = Problem(HTTPStatus.INTERNAL_SERVER_ERROR, detail)
            return problem.response()

    return answer


class _Admin:
    """The endpoints."""

    def __init__(self, tenants: TenantStore, prompts: SystemPrompts, max_body_bytes: int) -> None:
        self._tenants = tenants
        self._prompts = prompts
        self._max_body_bytes = max_body_bytes

    async def create_tenant(self, request: Request) -> Response:
        body = TenantBody.model_validate(await read_json(request, self._max_body_bytes))
        tenant, api_key = await self._tenants.create_tenant(body.id, body.name)
        return json_response(tenant_document(tenant) | {"api_key": api_key}, HTTPStatus.CREATED)

    async def list_tenants(self, _: Request) -> Response:
        tenants = await self._tenants.list_tenants()
        return json_response({"tenants": [tenant_document(tenant) for tenant in tenants]})

    async def show_tenant(self, request: Request) -> Response:
        tenant = await self._tenants.get_tenant(request.path_params["tenant"])
        return json_response(tenant_document(tenant))

    async def delete_tenant(self, request: Request) -> Response:
        await self._tenants.delete_tenant(request.path_params["tenant"])
        return Response(status_code=HTTPStatus.NO_CONTENT)

    async def rotate_key(self, request: Request) -> Response:
        api_key = await self._tenants.rotate_key(request.path_params["tenant"])
        return json_response({"id": request.path_params["tenant"], "api_key": api_key})

    async def list_prompts(self, request: Request) -> Response:
        tenant = await self._tenants.get_tenant(request.path_params["tenant"])
        documents = [
            prompt_document(prompt, await self._prompts.newest_index(tenant.id, prompt))
            for prompt in await self._prompts.list(tenant.id)
        ]
        return json_response({"prompts": documents})

    async def put_prompt(self, request: Request) -> Response:
        tenant, name = request.path_params["tenant"], request.path_params["name"]
        body = PromptBody.model_validate(await read_json(request, self._max_body_bytes))
        prompt = await self._prompts.put(tenant, name, body.text)
        return json_response(
            prompt_document(prompt, await self._prompts.newest_index(tenant, prompt))
        )

    async def show_prompt(self, request: Request) -> Response:
        tenant, name = request.path_params["tenant"], request.path_params["name"]
        prompt = await self._prompts.get(tenant, name)
        if prompt is None:
            raise PromptNotFound(name)
        index = await self._prompts.newest_index(tenant, prompt)
        return json_response(prompt_document(prompt, index) | {"text": prompt.text})

    async def delete_prompt(self, request: Request) -> Response:
        tenant, name = request.path_params["tenant"], request.path_params["name"]
        await self._prompts.delete(tenant, name)
        return Response(status_code=HTTPStatus.NO_CONTENT)
