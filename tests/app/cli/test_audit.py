"""`partywall audit` over a server that leaks or does not, in a time of its own."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from app.cli.program import app
from app.isolation_audit import server
from tests.app.isolation_audit.leaky_server import LeakyServer

URL = "http://server.test/v1"


@pytest.fixture
def leaky(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> LeakyServer:
    found: LeakyServer = request.param
    way = partial(server.Server, transport=found, clock=lambda: found.now, sleep=found._sleep)
    monkeypatch.setattr(server, "Server", way)
    return found


def run(*options: str) -> Result:
    few = ["--samples", "12", "--channel", "usage"]
    return CliRunner().invoke(app, ["audit", "--url", URL, *few, *options])


@pytest.mark.parametrize(
    ("leaky", "status"),
    [(LeakyServer(), 0), (LeakyServer({"usage"}), 1), (LeakyServer(caches=False), 2)],
    indirect=["leaky"],
)
def test_the_status_is_the_verdict(leaky: LeakyServer, status: int, tmp_path: Path) -> None:
    drawn = tmp_path / "audit.svg"
    keys = ["--key", "key-a", "--neighbour", "key-b"]
    result = run(*keys, "--json", "--plot", str(drawn))
    assert result.exit_code == status
    assert json.loads(result.stdout)["verdict"] == ["clean", "leak", "cannot tell"][status]
    assert drawn.read_text().startswith("<svg")


@pytest.mark.parametrize("leaky", [LeakyServer()], indirect=True)
def test_one_key_is_that_of_both_tenants(leaky: LeakyServer) -> None:
    result = run("--key", "key-a")
    assert result.exit_code == 1
    assert "leak: a tenant can tell" in result.stdout
    assert {tenant for _, tenant in leaky.requests} == {"Bearer key-a"}


@pytest.mark.parametrize("leaky", [LeakyServer(by_salt=True)], indirect=True)
def test_salts_stand_for_keys(leaky: LeakyServer) -> None:
    assert run("--salt").exit_code == 0
    assert {tenant for _, tenant in leaky.requests} > {"audit-a", "audit-b"}


@pytest.mark.parametrize("leaky", [LeakyServer()], indirect=True)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--key", "key-a", "--key", "wrong"], "the second tenant is not answered"),
        (["--key", "a", "--key", "b", "--neighbour", "c"], "at most two keys"),
        (["--key", "key-a", "--channel", "smell"], "--channel smell"),
        (["--key", "key-a", "--adapter", "small:one"], "each as often as the other"),
        (["--url", "server.test"], "--url server.test"),
        (["--key", "key-a", "--key", "key-b", "--plot", "/nowhere/a.svg"], "/nowhere/a.svg"),
    ],
)
def test_what_cannot_be_done_has_a_status_that_calls_nothing_leaky(
    leaky: LeakyServer, options: list[str], message: str
) -> None:
    result = run(*options)
    assert result.exit_code == 2
    assert message in result.stderr.replace("\n", " ")
