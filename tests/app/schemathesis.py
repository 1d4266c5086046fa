"""Schemathesis, with all checks on, over what an OpenAPI document describes."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path


async def schemathesis(
    url: str, token: str, config: str, folder: Path, *options: str
) -> tuple[int, str]:
    """The exit status of a run over the document of `url`, by who has `token`; what it printed."""
    (folder / "schemathesis.toml").write_text(config)
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", "schemathesis.toml"]
    command += ["run", f"{url}/openapi.json", "-H", f"Authorization: Bearer {token}"]
    command += ["--checks", "all", "--seed", "1", "--no-color", "--generation-database", "none"]
    process = await asyncio.create_subprocess_exec(
        *command,
        *options,
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    printed, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, printed.decode()
