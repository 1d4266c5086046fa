"""What the protocols are built upon inside uvicorn, where nothing is promised.

Where these fail, uvicorn has moved it: read what became of it, then raise the cap on its version.
"""

from __future__ import annotations

import inspect
import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from app.transport.http_protocol import HttpProtocol
from app.transport.websocket_protocol import WebSocketProtocol

OVERRIDDEN = {
    HttpProtocol: """connection_lost connection_made data_received eof_received on_body on_header
        on_headers_complete on_message_begin on_message_complete on_response_complete on_url
        pause_writing timeout_keep_alive_handler _start_asgi_task""",
    WebSocketProtocol: """connection_lost data_received handle_cont handle_connect handle_ping
        keepalive_timeout on_task_complete receive resume_writing send send_receive_event_to_app
        shutdown""",
}


def test_uvicorn_is_capped_at_the_minor_version_that_was_read() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    wanted = {one.name: one.specifier for one in map(Requirement, project["dependencies"])}
    major, minor, *_ = map(int, version("uvicorn").split("."))
    assert version("uvicorn") in wanted["uvicorn"]
    assert f"{major}.{minor + 1}" not in wanted["uvicorn"]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(HttpProtocol, HttpToolsProtocol), (WebSocketProtocol, WebSocketsSansIOProtocol)],
)
def test_what_is_overridden_and_used_of_uvicorn_is_there(ours: type, theirs: type) -> None:
    overridden = {name for name in vars(ours) if callable(getattr(theirs, name, None))}
    assert set(OVERRIDDEN[ours].split()) <= overridden
    source, here = inspect.getsource(theirs), inspect.getsource(ours)
    used = set(re.findall(r"\b(?:self|super\(\))\.(\w+)", here))
    set_here = set(re.findall(r"\bself\.(_\w+)(?:: [^=\n]+)? =", here))
    set_there = set(re.findall(r"\bself\.(\w+)", source))
    assert used <= set(dir(ours)) | set_here | set_there
