"""Other servers, started by a file's word for it, and compared with the real service."""

from __future__ import annotations

import json
import re
import socket
import sys
from pathlib import Path

import pytest

from bench import __main__ as cli
from bench.peers import peers
from bench.peers.peer import Peer, read_peers, running_peer
from bench.registry import BenchError
from tests.bench import stand_in

EXAMPLE = Path(peers.__file__).with_name("peers.example.toml")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_servers_take_turns_and_are_compared(
    model: Path, peer: stand_in.Peer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, out = free_port(), tmp_path / "figures.json"
    file = tmp_path / "peers.toml"
    command = json.dumps([sys.executable, "-m", "tests.bench.stand_in", str(port)])
    file.write_text(
        f'[[peer]]\nname = "started"\nmodel = "m"\nurl = "http://127.0.0.1:{port}/v1"\n'
        f"command = {command}\n"
        f'[[peer]]\nname = "running"\nmodel = "m"\nurl = "{peer.url}"\n'
        'omits = ["ignore_eos"]\nnew_connections = true\n'
    )
    peer.short_by = 1
    given = ["peers", "--peers", str(file), "--model", str(model), "--json", str(out)]
    given += ["--rounds", "1", "--tenants", "2", "--requests", "2", "--output-tokens", "5"]
    given += ["--system-tokens", "20", "--serve-args", "--kv-memory 32MiB"]
    monkeypatch.setattr("sys.argv", ["bench", *given])
    assert cli.main() == 0
    found: dict[str, float] = json.loads(out.read_text())["figures"]
    named = {re.sub("_(started|running)$", "_PEER", name) for name in found if "ratio_" in name}
    assert named >= {"tokens_per_s_ratio_PEER", "ttft_p50_ratio_PEER"}
    ours = found["output_tokens_per_s_partywall"]
    for name in ("started", "running"):
        rate = found[f"output_tokens_per_s_{name}"]
        assert found[f"tokens_per_s_ratio_{name}"] == pytest.approx(ours / rate)
        assert found[f"errors_{name}"] == 0
        assert found[f"prompt_hit_ratio_{name}"] == 0.75
    assert min(found["peak_rss_mib_started"], found["ready_s_started"]) > 0
    assert "peak_rss_mib_running" not in found
    assert all("ignore_eos" not in body for body in peer.bodies)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_a_peer_that_does_not_start_tells_why() -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('no weights here')"]
    peer = Peer(name="broken", url=f"http://127.0.0.1:{free_port()}", model="m", command=command)
    told = r"broken ended with status 1:\n.*no weights here"
    with pytest.raises(BenchError, match=told), running_peer(peer):
        pass


def test_a_peer_that_never_answers_is_stopped() -> None:
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    peer = Peer(
        name="mute",
        url=f"http://127.0.0.1:{free_port()}",
        model="m",
        command=command,
        ready_timeout_seconds=0.3,
    )
    with pytest.raises(BenchError, match="mute is not ready"), running_peer(peer):
        pass


def test_a_peer_that_refuses_is_quoted(peer: stand_in.Peer) -> None:
    peer.fail_every = 1
    refusing = Peer(name="picky", url=peer.url, model="m", ready_timeout_seconds=0.3)
    told = 'picky is not ready: HTTP 503: .*"no"'
    with pytest.raises(BenchError, match=told), running_peer(refusing):
        pass
    assert peer.bodies[0]["temperature"] == 0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[[peer]]\nname = "a"\nurl = "http://x"', "model"),
        ('[[peer]]\nname = "a"\nurl = "http://x"\nmodel = "m"\nport = 3', "port"),
        ('[[peer]]\nname = "partywall"\nurl = "http://x"\nmodel = "m"', "partywall"),
        ('[[peer]]\nname = "a b"\nurl = "http://x"\nmodel = "m"', "a b"),
        ("peer", "peers.toml"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_what_is_wrong(
    text: str, told: str, tmp_path: Path
) -> None:
    file = tmp_path / "peers.toml"
    file.write_text(text)
    with pytest.raises(BenchError, match=told):
        read_peers(file)


def test_the_example_can_be_read() -> None:
    assert [peer.name for peer in read_peers(EXAMPLE)] == [
        "vllm",
        "llamacpp",
        "openvino",
        "transformers",
    ]
