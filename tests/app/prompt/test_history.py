"""The turns that only a socket knows."""

from __future__ import annotations

from app.prompt.history import SocketHistory, Turn, pack_ids


def _turn(num_bytes: int) -> Turn:
    return Turn(
        packed_ids=pack_ids([1]),
        shared_tokens=0,
        shared_owner="",
        system=None,
        end_user=None,
        response=bytes(num_bytes),
    )


def _kept(history: SocketHistory, names: str) -> str:
    return "".join(name for name in names if history.load(name) is not None)


def test_a_socket_keeps_so_many_turns() -> None:
    history = SocketHistory(2, 1_000_000)
    for name in "abc":
        history.save(name, _turn(10))
    assert _kept(history, "abc") == "bc"


def test_a_socket_keeps_turns_of_so_many_bytes_and_always_the_last() -> None:
    history = SocketHistory(64, 1000)
    for name in "abc":
        history.save(name, _turn(400))
    assert _kept(history, "abc") == "bc"
    history.evict("b")
    history.save("d", _turn(400))
    assert _kept(history, "abcd") == "cd"
    history.save("e", _turn(5000))
    assert _kept(history, "abcde") == "e"
