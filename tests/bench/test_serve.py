"""The load generator, against a small OpenAI-compatible peer on real sockets."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from bench import __main__ as cli
from bench.common.workload import question, system_prompt
from bench.registry import BenchError, load, names
from bench.service import serve


class Peer(BaseHTTPRequestHandler):
    """Answers with as many chunks as asked for; fails where the question names `fail_on`."""

    protocol_version = "HTTP/1.1"
    requests: list[dict[str, Any]]
    fail_on: str | None = None

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.requests.append(body)
        if self.fail_on is not None and self.fail_on in body["messages"][1]["content"]:
            self.send_response(500)
            self.send_header("content-length", "0")
            self.end_headers()
            return
        tokens = body["max_tokens"]
        chunks = [{"choices": [{"delta": {"content": "x"}}], "usage": None}] * tokens
        usage = {
            "prompt_tokens": 100,
            "completion_tokens": tokens,
            "prompt_tokens_details": {"cached_tokens": 75},
        }
        lines = [json.dumps(chunk) for chunk in [*chunks, {"choices": [], "usage": usage}]]
        data = "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"]).encode()
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, type[Peer]]]:
    monkeypatch.setattr(serve, "token_counter", lambda _: lambda text: len(text.split()))
    handler = type("FreshPeer", (Peer,), {"requests": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", handler
        server.shutdown()
        thread.join()


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["bench", *arguments])
    return cli.main()


SMALL = ["--tenants", "2", "--requests", "3", "--rounds", "2", "--output-tokens", "5"]


def test_a_peer_is_driven_and_summed_up(
    peer: tuple[str, type[Peer]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, handler = peer
    out = tmp_path / "serve.json"
    assert run(monkeypatch, "serve", "--url", url, *SMALL, "--json", str(out)) == 0
    document = json.loads(out.read_text())
    assert document.keys() == {"bench", "machine", "versions", "parameters", "figures"}
    figures = document["figures"]
    assert figures["errors"] == 0
    assert figures["prompt_hit_ratio"] == 0.75
    assert "peak_kv_blocks" not in figures  # operators' metrics are nothing for strangers
    assert figures["output_tokens_per_s"] > 0
    assert figures.keys() <= serve.FIGURES.keys()
    measured = [body for body in handler.requests if body["max_tokens"] == 5]
    assert len(measured) == 2 * 3 * 2
    assert all(body["ignore_eos"] and body["temperature"] == 0 for body in measured)


def test_no_question_is_asked_twice_and_every_tenant_has_its_own_system_prompt(
    peer: tuple[str, type[Peer]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, handler = peer
    run(monkeypatch, "serve", "--url", url, *SMALL)
    questions = [body["messages"][1]["content"] for body in handler.requests]
    systems = {body["messages"][0]["content"] for body in handler.requests}
    assert len(set(questions)) == len(questions)
    assert len(systems) == 2


def test_failed_requests_are_counted_and_do_not_end_the_run(
    peer: tuple[str, type[Peer]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, handler = peer
    handler.fail_on = "round 0, 1.1"
    out = tmp_path / "serve.json"
    assert run(monkeypatch, "serve", "--url", url, *SMALL, "--json", str(out)) == 0
    assert json.loads(out.read_text())["figures"]["errors"] == 1


def test_a_peer_that_serves_nothing_is_an_error(
    peer: tuple[str, type[Peer]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url, handler = peer
    handler.fail_on = ""
    assert run(monkeypatch, "serve", "--url", url, *SMALL) == 1
    assert "warm-up failed" in capsys.readouterr().err


def test_every_bench_is_listed_with_its_figures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run(monkeypatch, "--list") == 0
    listed = capsys.readouterr().out
    for name in names():
        assert name in listed
        assert all(figure in listed for figure in load(name).FIGURES)


def test_a_system_prompt_has_exactly_the_tokens_asked_for() -> None:
    def count(text: str) -> int:
        return len(text.split())

    prompts = [system_prompt(f"tenant-{number}", 50, count) for number in range(3)]
    assert [count(prompt) for prompt in prompts] == [50, 50, 50]
    assert len(set(prompts)) == 3
    with pytest.raises(BenchError):
        system_prompt("tenant", 2, lambda text: len(text.split()) * 3)


def test_questions_are_the_same_in_every_run() -> None:
    assert question("round 1, 2.3") == question("round 1, 2.3")
    assert question("round 1, 2.3") != question("round 1, 2.4")
