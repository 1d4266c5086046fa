"""Where tenants are kept, by which secrets, and what is noted of writes to it."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

from pydantic import ByteSize, Field, model_validator

from app.settings.kinds import (
    Count,
    DefaultCount,
    GivenFile,
    Location,
    Section,
    check_given_file,
    paths,
)


def default_data_dir() -> Path:
    """Where the embedded store lives: `partywall` in the user's data folder (XDG)."""
    base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(base).expanduser() / "partywall"


class StoreSettings(Section):
    """Of a Redis of the operator's, or of the embedded store."""

    redis_url: str | None = Field(
        None,
        description="Redis or Valkey to use, not the embedded one; of a Redis Cluster any server, "
        "as redis+cluster://HOST:PORT.",
    )
    redis_password_file: GivenFile = Field(
        None, description="File that holds the password for redis_url."
    )
    data_dir: Location = Field(
        default_factory=default_data_dir,
        description="The embedded store, the admin token's hash, blocks that are kept, and usage "
        "that is not in the store yet.",
    )
    adapter_dir: Location | None = Field(
        None,
        description="Folder of folders with adapters, which operators may have put by their names.",
    )
    store_memory: ByteSize = Field(
        ByteSize(1024**3),
        ge=16 * 1024**2,
        description="Memory of the embedded store; full, it refuses writes.",
    )
    admin_writes_per_minute: DefaultCount = Field(
        600,
        description="Writes that each holder of an admin token, or person, may make in a replica.",
    )
    audit_max_entries: Count = Field(
        1_000_000,
        description="Admin writes that the audit keeps, about; the oldest go of who has the most.",
    )
    audit_file: Location | None = Field(
        None, description="File that has each line of the audit (JSON) before that may go."
    )
    pepper_file: GivenFile = Field(
        None,
        description="Secret that API key hashes and the store's encryption depend on; by default "
        "data_dir has one.",
    )
    other_pepper_files: str | None = Field(
        None,
        description="Files, with commas, of further peppers that are known: former ones until the "
        "store is rotated, the next one before it.",
    )
    demo_tenant: bool = Field(True, description="Create the tenant 'demo' on the first start.")

    @model_validator(mode="after")
    def _store_fits(self) -> StoreSettings:
        for path in paths(self.other_pepper_files):
            check_given_file("other_pepper_files", path)
        if self.redis_password_file is not None:
            if self.redis_url is None:
                raise ValueError("redis_password_file goes with redis_url")
            if urlsplit(self.redis_url).password is not None:
                raise ValueError("redis_url has a password, and redis_password_file another")
        return self

    @property
    def kept_dir(self) -> Path:
        """Where blocks outlive a restart, unless none are kept."""
        return self.data_dir / "kept"

    @property
    def store_url(self) -> str | None:
        """`redis_url` with the password out of its file. Raises `OSError`."""
        if self.redis_url is None or self.redis_password_file is None:
            return self.redis_url
        password = quote(self.redis_password_file.read_text().strip(), safe="")
        parts = urlsplit(self.redis_url)
        user, _, address = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{user}:{password}@{address}"))
