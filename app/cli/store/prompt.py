"""`partywall prompt ...`: system prompts of tenants and share groups, straight on the store."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.printing import AsJson, print_json, print_table, show_rows
from app.cli.store.store import Confirmed, actor, confirm, store_command, with_stores

if TYPE_CHECKING:
    from app.stores import Stores
    from tenants.records import PromptIndex, SystemPrompt

app = typer.Typer(help="Register, show and delete system prompts.", no_args_is_help=True)

_WARM_SECONDS = 60.0
_POLL_SECONDS = 0.1

Owner = Annotated[
    str, typer.Argument(metavar="TENANT", help="The tenant's id, or '@' and a share group's.")
]
PromptName = Annotated[str, typer.Argument(metavar="NAME", help="The prompt's name.")]
Version = Annotated[int, typer.Argument(metavar="VERSION", help="The version's number.", min=1)]


@store_command(app, "put")
def put(
    owner: Owner,
    name: PromptName,
    text: Annotated[str | None, typer.Option(help="The text.")] = None,
    file: Annotated[
        Path | None, typer.Option(help="Read the text from this file.", exists=True, dir_okay=False)
    ] = None,
    adapter: Annotated[
        str | None, typer.Option(help="The adapter that is meant where a request names none.")
    ] = None,
    activate: Annotated[bool, typer.Option(help="Use it where no version is named.")] = True,
    **given: Any,
) -> None:
    """Register a system prompt, or a new version of it.

    Its text comes from --text, --file or standard input.
    """
    if text is not None and file is not None:
        raise typer.BadParameter("--text and --file exclude each other")
    if text is None:
        text = file.read_text() if file is not None else sys.stdin.read()
    content = text.removesuffix("\n")

    async def work(stores: Stores) -> tuple[SystemPrompt, PromptIndex | None, int]:
        prompt = await stores.prompts.put(
            owner, name, content, adapter=adapter, activate=activate, actor=actor()
        )
        listeners = await stores.tenants.count_listeners()
        waits = listeners and prompt.active
        return prompt, await _wait_warm(stores, owner, prompt) if waits else None, listeners

    prompt, index, listeners = with_stores(given, work)
    print(f"stored prompt {name} of {owner}, version {prompt.version}")
    if index is not None:
        print(f"warmed: {index.token_count} tokens, {len(index.block_hashes)} blocks")
    elif not prompt.active:
        print("another version is active")
    elif listeners:
        print(f"the service has not warmed it within {_WARM_SECONDS:.0f} s; its log may say why")
    else:
        print("no service is running; it will be warmed when one starts")


@store_command(app, "list")
def list_(owner: Owner, as_json: AsJson = False, **given: Any) -> None:
    """List a tenant's or share group's system prompts. Each is shown in its active version."""

    async def work(stores: Stores) -> list[dict[str, Any]]:
        if owner.startswith("@"):
            await stores.groups.get(owner.removeprefix("@"))
        else:
            await stores.tenants.get_tenant(owner)
        return await _documents(stores, owner, await stores.prompts.list(owner))

    documents = with_stores(given, work)
    show_rows(documents, f"{owner} has no system prompts", as_json)


@store_command(app, "versions")
def versions(owner: Owner, name: PromptName, as_json: AsJson = False, **given: Any) -> None:
    """List the versions of a system prompt, the newest first."""

    async def work(stores: Stores) -> list[dict[str, Any]]:
        return await _documents(stores, owner, await stores.prompts.versions(owner, name))

    documents = with_stores(given, work)
    show_rows(documents, "", as_json)


@store_command(app, "show")
def show(
    owner: Owner,
    name: PromptName,
    version: Annotated[
        int | None, typer.Option(min=1, help="Which version; the active one by default.")
    ] = None,
    as_json: AsJson = False,
    **given: Any,
) -> None:
    """Show a system prompt and its text."""
    from app.admin.documents import PromptWithText
    from tenants.errors import PromptNotFound

    async def work(stores: Stores) -> dict[str, Any]:
        prompt = await stores.prompts.get(owner, name, version)
        if prompt is None:
            raise PromptNotFound(name, version)
        index = await stores.prompts.newest_index(owner, prompt)
        return PromptWithText.with_index(prompt, index).model_dump(mode="json")

    document = with_stores(given, work)
    if as_json:
        print_json(document)
    else:
        content = document.pop("text")
        print_table([document], "")
        print(f"\n{content}")


@store_command(app, "activate")
def activate(owner: Owner, name: PromptName, version: Version, **given: Any) -> None:
    """Make a version the one that is used where none is named."""
    with_stores(given, lambda stores: stores.prompts.activate(owner, name, version, actor=actor()))
    print(f"version {version} of prompt {name} of {owner} is active")


@store_command(app, "pin")
def pin(owner: Owner, name: PromptName, **given: Any) -> None:
    """Keep a system prompt's blocks in memory. Every running service does."""
    _set_pinned(owner, name, True, given)


@store_command(app, "unpin")
def unpin(owner: Owner, name: PromptName, **given: Any) -> None:
    """Let a system prompt's blocks be evicted like any others."""
    _set_pinned(owner, name, False, given)


@store_command(app, "delete")
def delete(owner: Owner, name: PromptName, yes: Confirmed = False, **given: Any) -> None:
    """Delete a system prompt in all its versions."""
    confirm(f"Delete prompt {name} of {owner}?", yes)
    with_stores(given, lambda stores: stores.prompts.delete(owner, name, actor=actor()))
    print(f"deleted prompt {name} of {owner}")


def _set_pinned(owner: str, name: str, pinned: bool, given: dict[str, Any]) -> None:
    with_stores(given, lambda stores: stores.prompts.set_pinned(owner, name, pinned, actor=actor()))
    print(f"prompt {name} of {owner} is {'pinned' if pinned else 'no longer pinned'}")


async def _documents(
    stores: Stores, owner: str, prompts: list[SystemPrompt]
) -> list[dict[str, Any]]:
    from app.admin.documents import PromptDocument

    return [
        PromptDocument.with_index(
            prompt, await stores.prompts.newest_index(owner, prompt)
        ).model_dump(mode="json")
        for prompt in prompts
    ]


async def _wait_warm(stores: Stores, owner: str, prompt: SystemPrompt) -> PromptIndex | None:
    """The prompt's index, once a running service has computed its blocks; else `None`."""
    deadline = time.monotonic() + _WARM_SECONDS
    while time.monotonic() < deadline:
        index = await stores.prompts.newest_index(owner, prompt)
        if index is not None:
            return index
        await asyncio.sleep(_POLL_SECONDS)
    return None
