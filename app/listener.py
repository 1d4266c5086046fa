"""The socket that the service listens on, and its address."""

from __future__ import annotations

import socket

from app.settings import Settings


def bind(settings: Settings) -> socket.socket:
    """A bound socket that does not listen yet, so that a taken port is known before a long start.

    Raises `OSError`, which names the address.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _cannot_listen(settings, error) from error
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise _cannot_listen(settings, error) from error
    return listener


def _cannot_listen(settings: Settings, error: OSError) -> OSError:
    return OSError(f"cannot listen on {settings.host} port {settings.port}: {error.strerror}")


def service_url(settings: Settings, listener: socket.socket) -> str:
    """The URL at which a client on this machine reaches the service."""
    scheme = "https" if settings.uses_tls else "http"
    local = {"0.0.0.0": "127.0.0.1", "::": "::1"}
    host = local.get(settings.host, settings.host)
    host = f"[{host}]" if ":" in host else host
    return f"{scheme}://{host}:{listener.getsockname()[1]}"
