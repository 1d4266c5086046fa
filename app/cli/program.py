"""The commands together; each imports what it needs itself."""

from __future__ import annotations

import typer

from app.cli import audit, chat, doctor, models, serve
from app.cli.store import adapter, admin_token, backup, group, key, prompt, report, rotation, tenant

app = typer.Typer(
    name="partywall",
    help="A streaming chat backend: one open-weight model, many tenants, one shared KV cache.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("serve")(serve.serve)
app.command("chat")(chat.chat)
app.add_typer(tenant.app, name="tenant")
app.add_typer(key.app, name="key")
app.add_typer(admin_token.app, name="token")
app.add_typer(prompt.app, name="prompt")
app.add_typer(adapter.app, name="adapter")
app.add_typer(group.app, name="group")
app.add_typer(rotation.app, name="store")
app.command("backup")(backup.backup)
app.command("restore")(backup.restore)
app.command("usage")(report.usage)
app.command("audit-log")(report.audit_log)
app.command("audit")(audit.audit)
app.command("doctor")(doctor.doctor)
app.command("models")(models.models)
