"""What a setting can be, and how it is written: counts, sizes, times, places, networks.

A section of the settings tree has them, and the engine's own declarations join it.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ByteSize, Field, model_validator

from engine.config import EngineConfig
from engine.declared import declared

LAST_PORT = 65_535
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[a-z0-9.\-\[\]:]+")
"""As browsers write it (RFC 6454): in small letters, without a path."""


_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")


def _none_if(word: str) -> BeforeValidator:
    return BeforeValidator(lambda value: None if value == word else value)


def _readable_by(read: Callable[[str], object]) -> AfterValidator:
    """Text stays as it is, if it can be read so."""

    def check(text: str) -> str:
        read(text)
        return text

    return AfterValidator(check)


def _expanded(value: object) -> object:
    return Path(value).expanduser() if isinstance(value, str | Path) else value


def names(text: str | None) -> list[str]:
    """Words with commas between them."""
    parts = (part.strip() for part in (text or "").split(","))
    return [part for part in parts if part]


def networks(text: str) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    """Addresses and networks, with commas between them. Raises `ValueError`."""
    return tuple(map(ipaddress.ip_network, names(text)))


def origins(text: str) -> tuple[str, ...]:
    """Origins of web pages, with commas between them, or `*`. Raises `ValueError`."""
    parts = names(text)
    for part in parts:
        if part != "*" and not _ORIGIN.fullmatch(part):
            raise ValueError(f"{part!r} is no origin, such as https://chat.example.com")
    return tuple(parts)


def hosts(text: str) -> tuple[str, ...]:
    """Names of hosts, with commas between them. Raises `ValueError`."""
    parts = names(text)
    for part in parts:
        if not _HOST.fullmatch(part):
            raise ValueError(f"{part!r} is no name of a host, such as images.example.com")
    return tuple(part.lower() for part in parts)


def paths(text: str | None) -> list[Path]:
    """Files with commas between them."""
    return [Path(name).expanduser() for name in names(text)]


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what is bound to `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _checked_url(text: str) -> str:
    import httpx  # for those who have one

    try:
        httpx.URL(text)  # refuses what could never be sent to
        parts = urlsplit(text)
        has_port = parts.port != 0
    except (httpx.InvalidURL, ValueError) as error:
        raise ValueError(f"an http:// or https:// address: {error}") from None
    names_user = parts.username is not None or parts.password is not None
    if parts.scheme not in ("http", "https") or not parts.hostname or names_user or not has_port:
        raise ValueError("an http:// or https:// address without a user")
    return text


def checked_secure_url(text: str) -> str:
    """An address that nobody else can listen to, or answer for. Raises `ValueError`."""
    parts = urlsplit(_checked_url(text))
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        raise ValueError("https, but to this machine")
    return text


Count = Annotated[int, Field(ge=1)]
AUTO = _none_if("auto")
_UNLIMITED = _none_if("unlimited")
DefaultCount = Annotated[Count | None, _UNLIMITED]
DefaultSize = Annotated[ByteSize | None, _UNLIMITED]
AutoCount = Annotated[Count | None, AUTO]
AutoSize = Annotated[ByteSize | None, AUTO]
Location = Annotated[Path, BeforeValidator(_expanded)]
GIVEN: Final = object()
"""Of a file that has to be there."""
GivenFile = Annotated[Location | None, GIVEN]
Seconds = Annotated[float, Field(gt=0)]
AutoPort = Annotated[Annotated[int, Field(ge=0, le=LAST_PORT)] | None, AUTO]
Networks = Annotated[str, _readable_by(networks)]
Origins = Annotated[str, _readable_by(origins)]
Hosts = Annotated[str, _readable_by(hosts)]
Url = Annotated[str, AfterValidator(_checked_url)]
SecureUrl = Annotated[str, AfterValidator(checked_secure_url)]


def check_given_file(name: str, path: Path) -> None:
    """Raise `ValueError` unless `path` is a file that says something to this process's user."""
    user = f"user {os.geteuid()}"
    try:
        if not path.is_file():
            raise ValueError(f"{name}: there is no file {path}")
        if not path.read_bytes().strip():
            raise ValueError(f"{name}: {path} is empty")
    except PermissionError:
        raise ValueError(
            f"{name}: {user} may not read {path}; make it {user}'s own (mode 0600), or readable "
            "to all (0644) in a folder that is not"
        ) from None


class Section(BaseModel, frozen=True, defer_build=True):
    """Settings of one subject; read and checked together with all others, and not alone."""

    @model_validator(mode="after")
    def _given_files_are_there(self) -> Self:
        for name, field in type(self).model_fields.items():
            path = getattr(self, name)
            if GIVEN in field.metadata and path is not None:
                check_given_file(name, path)
        return self


def of_engine(name: str, **own: Any) -> Any:
    """A setting that is a field of `EngineConfig`: with its default, unless the service has its
    `own`, its range and its description.
    """
    field = declared(EngineConfig)[name]
    if isinstance(field.default, float):
        own["allow_inf_nan"] = False
    given = {"default": field.default, "description": field.description, **field.limits, **own}
    setting = Field(**given)
    if field.is_auto:
        setting.metadata.append(AUTO)
    return setting
