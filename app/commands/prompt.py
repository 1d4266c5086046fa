"""`partywall prompt ...`: a tenant's system prompts, straight on the store."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.commands.errors import CommandError
from app.commands.options import settings_command
from app.commands.store import STORE_FIELDS, AsJson, print_json, print_table, with_stores
from app.commands.tenant import TenantId

if TYPE_CHECKING:
    from app.stores import Stores
    from tenants.records import PromptIndex, SystemPrompt

app = typer.Typer(help="Register, show and delete tenants' system prompts.", no_args_is_help=True)

_WARM_SECONDS = 60.0
_POLL_SECONDS = 0.1

PromptName = Annotated[str, typer.Argument(metavar="NAME", help="The prompt's name.")]


@app.command("put")
@settings_command(STORE_FIELDS)
def put(
    tenant: TenantId,
    name: PromptName,
    text: Annotated[str | None, typer.Option(help="The text.")] = None,
    file: Annotated[
        Path | None, typer.Option(help="Read the text from this file.", exists=True, dir_okay=False)
    ] = None,
    **given: Any,
) -> None:
    """Register a system prompt (a new version, if there is one): --text, --file, or from stdin."""
    if text is not None and file is not None:
        raise typer.BadParameter("--text and --file exclude each other")
    if text is None:
        text = file.read_text() if file is not None else sys.stdin.read()
    content = text.removesuffix("\n")

    async def work(stores: Stores) -> tuple[SystemPrompt, PromptIndex | None, int]:
        prompt = await stores.prompts.put(tenant, name, content)
        listeners = await stores.tenants.count_listeners()
        index = await _wait_warm(stores, tenant, prompt) if listeners else None
        return prompt, index, listeners

    prompt, index, listeners = with_stores(given, work)
    print(f"stored prompt {prompt.name} of tenant {tenant}, version {prompt.version}")
    if index is not None:
        print(f"warmed: {index.token_count} tokens, {len(index.block_hashes)} blocks")
    elif listeners:
        print(f"the service has not warmed it within {_WARM_SECONDS:.0f} s; its log may say why")
    else:
        print("no service is running; it will be warmed when one starts")


@app.command("list")
@settings_command(STORE_FIELDS)
def list_(tenant: TenantId, as_json: AsJson = False, **given: Any) -> None:
    """List a tenant's system prompts."""
    from app.documents import prompt_document

    async def work(stores: Stores) -> list[dict[str, Any]]:
        await stores.tenants.get_tenant(tenant)
        return [
            prompt_document(prompt, await stores.prompts.newest_index(tenant, prompt))
            for prompt in await stores.prompts.list(tenant)
        ]

    documents = with_stores(given, work)
    if as_json:
        print_json(documents)
    else:
        print_table(documents, f"tenant {tenant} has no system prompts")


@app.command("show")
@settings_command(STORE_FIELDS)
def show(tenant: TenantId, name: PromptName, as_json: AsJson = False, **given: Any) -> None:
    """Show a system prompt and its text."""
    from app.documents import prompt_document
    from tenants.errors import PromptNotFound

    async def work(stores: Stores) -> dict[str, Any]:
        prompt = await stores.prompts.get(tenant, name)
        if prompt is None:
            raise PromptNotFound(name)
        index = await stores.prompts.newest_index(tenant, prompt)
        return prompt_document(prompt, index) | {"text": prompt.text}

    document = with_stores(given, work)
    if as_json:
        print_json(document)
    else:
        content = document.pop("text")
        print_table([document], "")
        print(f"\n{content}")


@app.command("delete")
@settings_command(STORE_FIELDS)
def delete(
    tenant: TenantId,
    name: PromptName,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    **given: Any,
) -> None:
    """Delete a system prompt in all its versions."""
    if not yes and not typer.confirm(f"Delete prompt {name} of tenant {tenant}?"):
        raise CommandError("nothing was deleted")
    with_stores(given, lambda stores: stores.prompts.delete(tenant, name))
    print(f"deleted prompt {name} of tenant {tenant}")


async def _wait_warm(stores: Stores, tenant: str, prompt: SystemPrompt) -> PromptIndex | None:
    """The prompt's index, once a running service has computed its blocks; else `None`."""
    deadline = time.monotonic() + _WARM_SECONDS
    while time.monotonic() < deadline:
        index = await stores.prompts.newest_index(tenant, prompt)
        if index is not None:
            return index
        await asyncio.sleep(_POLL_SECONDS)
    return None
