"""`partywall adapter ...`: adapters of tenants and share groups, straight on the store.

No model is looked at: whether an adapter fits the one that is served is found when it is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from app.cli.options import CommandError
from app.cli.printing import AsJson, print_fields, print_json, show_line, show_rows
from app.cli.store.store import Confirmed, actor, confirm, store_command, with_stores

if TYPE_CHECKING:
    from app.stores import Stores
    from tenants.records import AdapterRecord

app = typer.Typer(help="Put, show and delete adapters (LoRA).", no_args_is_help=True)

Owner = Annotated[
    str, typer.Argument(metavar="TENANT", help="The tenant's id, or '@' and a share group's.")
]
AdapterName = Annotated[str, typer.Argument(metavar="NAME", help="The adapter's name.")]
Version = Annotated[int, typer.Argument(metavar="VERSION", help="The version's number.", min=1)]
_LISTED = ("name", "version", "active", "pinned", "rank", "bytes", "created_at")


@store_command(app, "put")
def put(
    owner: Owner,
    name: AdapterName,
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            help="Has adapter_config.json and adapter_model.safetensors, as PEFT saves them.",
            exists=True,
            file_okay=False,
        ),
    ],
    activate: Annotated[bool, typer.Option(help="Have the name mean this version.")] = True,
    as_json: AsJson = False,
    **given: Any,
) -> None:
    """Keep an adapter, or a new version of it."""
    from app.admin.uploads import CONFIG, WEIGHTS, chunks
    from engine.adapters.config import BadAdapter
    from engine.adapters.files import AdapterCheck

    try:
        config = (folder / CONFIG).read_bytes()
        with (folder / WEIGHTS).open("rb") as weights:
            check = AdapterCheck(config, _own_linears(config, weights))

            async def work(stores: Stores) -> AdapterRecord:
                return await stores.adapters.put(
                    owner, name, config, chunks(weights), check, activate=activate, actor=actor()
                )

            adapter = with_stores(given, work)
    except OSError as error:
        raise CommandError(f"{error.filename}: {error.strerror}") from error
    except BadAdapter as error:
        raise CommandError(str(error)) from error
    line = f"stored adapter {name} of {owner}, version {adapter.version}"
    show_line(_document(adapter), line, as_json)


@store_command(app, "list")
def list_(owner: Owner, as_json: AsJson = False, **given: Any) -> None:
    """List a tenant's or share group's adapters. Each is shown in its active version."""

    async def work(stores: Stores) -> list[AdapterRecord]:
        if owner.startswith("@"):
            await stores.groups.get(owner.removeprefix("@"))
        else:
            await stores.tenants.get_tenant(owner)
        return await stores.adapters.list(owner)

    _show(with_stores(given, work), f"{owner} has no adapters", as_json)


@store_command(app, "versions")
def versions(owner: Owner, name: AdapterName, as_json: AsJson = False, **given: Any) -> None:
    """List the versions of an adapter, the newest first."""
    _show(with_stores(given, lambda stores: stores.adapters.versions(owner, name)), "", as_json)


@store_command(app, "show")
def show(
    owner: Owner,
    name: AdapterName,
    version: Annotated[
        int | None, typer.Option(min=1, help="Which version; the active one by default.")
    ] = None,
    as_json: AsJson = False,
    **given: Any,
) -> None:
    """Show an adapter."""
    from tenants.errors import AdapterNotFound

    async def work(stores: Stores) -> AdapterRecord:
        adapter = await stores.adapters.get(owner, name, version)
        if adapter is None:
            raise AdapterNotFound(name, version)
        return adapter

    document = _document(with_stores(given, work))
    if as_json:
        print_json(document)
    else:
        print_fields(document)


@store_command(app, "activate")
def activate(owner: Owner, name: AdapterName, version: Version, **given: Any) -> None:
    """Have an adapter's name mean this version."""
    with_stores(given, lambda stores: stores.adapters.activate(owner, name, version, actor=actor()))
    print(f"version {version} of adapter {name} of {owner} is active")


@store_command(app, "pin")
def pin(owner: Owner, name: AdapterName, **given: Any) -> None:
    """Keep an adapter in memory once it is there. Every running service does."""
    _set_pinned(owner, name, True, given)


@store_command(app, "unpin")
def unpin(owner: Owner, name: AdapterName, **given: Any) -> None:
    """Let an adapter be evicted like any other."""
    _set_pinned(owner, name, False, given)


@store_command(app, "delete")
def delete(owner: Owner, name: AdapterName, yes: Confirmed = False, **given: Any) -> None:
    """Delete an adapter in all its versions."""
    confirm(f"Delete adapter {name} of {owner}?", yes)
    with_stores(given, lambda stores: stores.adapters.delete(owner, name, actor=actor()))
    print(f"deleted adapter {name} of {owner}")


def _own_linears(config: bytes, weights: BinaryIO) -> Mapping[str, tuple[int, ...]]:
    """The linear layers that weights are for, as they have them. Raises `BadAdapter`."""
    from engine.adapters.config import read_config
    from engine.adapters.files import header_bytes, read_tensors

    size = weights.read(8)
    header = weights.read(header_bytes(size))
    weights.seek(0)
    modules = read_tensors(size + header, read_config(config)).modules
    return {name: change.shape for name, change in modules.items()}


def _set_pinned(owner: str, name: str, pinned: bool, given: dict[str, Any]) -> None:
    with_stores(
        given, lambda stores: stores.adapters.set_pinned(owner, name, pinned, actor=actor())
    )
    print(f"adapter {name} of {owner} is {'pinned' if pinned else 'no longer pinned'}")


def _show(adapters: Sequence[AdapterRecord], empty: str, as_json: bool) -> None:
    documents = list(map(_document, adapters))
    show_rows(documents, empty, as_json, _LISTED)


def _document(adapter: AdapterRecord) -> dict[str, Any]:
    from app.admin.documents import AdapterDocument

    return AdapterDocument.of(adapter).model_dump(mode="json")
