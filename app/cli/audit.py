"""`partywall audit`: whether a server of the OpenAI API shows a tenant what another one sent."""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.printing import AsJson, print_json

if TYPE_CHECKING:
    from app.isolation_audit.audit import Plan
    from app.isolation_audit.report import Report
    from app.isolation_audit.server import Server, Tenant

_CANNOT_TELL = 2


def audit(
    url: Annotated[
        str, typer.Option(envvar="PARTYWALL_URL", help="The server.", show_default=False)
    ],
    key: Annotated[
        list[str] | None,
        typer.Option(
            envvar="PARTYWALL_AUDIT_KEYS",
            help="API key of the first tenant; again of the second. One or none is both's.",
            show_default=False,
        ),
    ] = None,
    neighbour: Annotated[
        str | None,
        typer.Option(help="API key of the second tenant, as a second --key is.", metavar="KEY"),
    ] = None,
    salt: Annotated[
        bool, typer.Option("--salt", help="Tell the tenants apart by cache_salt, as vLLM does.")
    ] = False,
    model: Annotated[str, typer.Option(help="Model; the first that is listed by default.")] = "",
    samples: Annotated[int, typer.Option(min=10, help="Probes on each side of each test.")] = 250,
    words: Annotated[
        int, typer.Option(min=8, max=4096, help="Words of a prompt, about a token each.")
    ] = 160,
    channel: Annotated[
        list[str] | None,
        typer.Option(help="Look at this channel alone; can be repeated.", metavar="NAME"),
    ] = None,
    adapter: Annotated[
        list[str] | None,
        typer.Option(
            help="Adapter of the first tenant, as requests name it; repeat it for more.",
            metavar="MODEL",
        ),
    ] = None,
    neighbour_adapter: Annotated[
        list[str] | None,
        typer.Option(
            help="Adapter of the second tenant, of the same files as the first one's in its place.",
            metavar="MODEL",
        ),
    ] = None,
    rate: Annotated[float, typer.Option(min=0.01, help="Requests a second, at most.")] = 20.0,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds that a request may take.")
    ] = 60.0,
    new_connections: Annotated[
        bool, typer.Option("--new-connections", help="Open a connection for each request.")
    ] = False,
    alpha: Annotated[
        float, typer.Option(min=0, max=1, help="Chance that a clean server is called leaky.")
    ] = 0.05,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Of what is sent and in which order, new by default. A server must not have heard "
            "it before."
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the distributions into this SVG.", dir_okay=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Test any OpenAI-compatible server for leaks between tenants.

    It asks whether a tenant can tell what its neighbour has sent.

    Status 0: nothing shows it. 1: something does. 2: it cannot be told, or the audit failed.
    """
    from app.isolation_audit.audit import Plan
    from app.isolation_audit.observing import CHANNELS
    from app.isolation_audit.probes import AdapterNames
    from app.isolation_audit.server import AuditError, Server

    owner, other = _tenants([*(key or []), *([neighbour] if neighbour else [])], salt)
    channels = tuple(dict.fromkeys(channel or CHANNELS))
    if unknown := [name for name in channels if name not in CHANNELS]:
        raise typer.BadParameter(f"--channel {unknown[0]}: there are {', '.join(CHANNELS)}")
    if not url.startswith(("http://", "https://")):
        raise typer.BadParameter(f"--url {url}: not a URL such as http://127.0.0.1:8000")
    adapters = AdapterNames(tuple(adapter or ()), tuple(neighbour_adapter or ()))
    if len(adapters.owner) != len(adapters.neighbour):
        raise typer.BadParameter("--adapter, --neighbour-adapter: each as often as the other")
    drawn = random.getrandbits(32) if seed is None else seed
    plan = Plan(
        samples=samples,
        words=words,
        channels=channels,
        seed=drawn,
        alpha=alpha,
        adapters=adapters,
    )

    server = Server(url, model, rate=rate, timeout_seconds=timeout, new_connections=new_connections)
    try:
        report = asyncio.run(_run(server, owner, other, plan))
    except AuditError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(_CANNOT_TELL) from None
    _show(report, plot, as_json=as_json)


def _tenants(keys: list[str], salted: bool) -> tuple[Tenant, Tenant]:
    from app.isolation_audit.server import Tenant

    if len(keys) > 2:
        raise typer.BadParameter("there are two tenants: at most two keys can be given")
    both: list[str | None] = [*keys, *keys] if len(keys) == 1 else [*keys] or [None, None]
    salts = ("audit-a", "audit-b") if salted else (None, None)
    return Tenant(both[0], salts[0]), Tenant(both[1], salts[1])


async def _run(server: Server, owner: Tenant, neighbour: Tenant, plan: Plan) -> Report:
    from rich.console import Console
    from rich.progress import Progress as Bar

    from app.isolation_audit.audit import audit as run_audit

    console = Console(stderr=True)
    with Bar(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("probes", total=None)

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        try:
            return await run_audit(server, owner, neighbour, plan, show)
        finally:
            await server.close()


def _show(report: Report, plot: Path | None, *, as_json: bool) -> None:
    """Print and draw what was found, and end with the status that says it."""
    from rich.console import Console

    from app.isolation_audit.plot import picture
    from app.isolation_audit.report import EXIT_STATUS, document, legend, table

    if as_json:
        print_json(document(report))
    else:
        console = Console()
        console.print(table(report))
        for line in legend(report):
            console.print(line, style="dim", markup=False)
    if plot is not None:
        try:
            plot.write_text(picture(report))
        except OSError as error:
            print(f"error: {plot}: {error.strerror}", file=sys.stderr)
            raise typer.Exit(_CANNOT_TELL) from None
    raise typer.Exit(EXIT_STATUS[report.verdict])
