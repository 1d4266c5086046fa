"""Pages that one process fills in another's memory, behind what that was told before."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from multiprocessing import Pipe

import pytest
import torch
from torch import Tensor

from engine.api import EngineBroken
from engine.model.layers.page_channel import PageChannel, Tickets, receive

PAGE_BYTES = 100_000


class Rank:
    """Its memory, and who fills it."""

    def __init__(self) -> None:
        own, other = Pipe()
        self.channel = PageChannel(own)
        self.tickets = Tickets()
        self.memory = torch.zeros(8, PAGE_BYTES, dtype=torch.uint8)
        arguments = other, self.tickets, self.memory.__getitem__
        self.thread = threading.Thread(target=receive, args=arguments, daemon=True)
        self.thread.start()

    def sends(self, ticket: int, pages: list[tuple[int, Tensor]]) -> threading.Thread:
        thread = threading.Thread(target=self.channel.send, args=(ticket, pages), daemon=True)
        thread.start()
        return thread

    @property
    def filled(self) -> list[int]:
        return [int(row[0]) for row in self.memory]


@pytest.fixture
def rank() -> Iterator[Rank]:
    rank = Rank()
    yield rank
    rank.channel.close()
    rank.thread.join(5)
    assert not rank.thread.is_alive(), "it ends with the first rank"


def page(value: int) -> Tensor:
    return torch.full((PAGE_BYTES,), value, dtype=torch.uint8)


def test_pages_are_where_they_belong_when_they_are_sent(rank: Rank) -> None:
    rank.tickets.admit(0)
    rank.channel.send(0, [(5, page(1)), (2, page(2))])
    assert rank.filled == [0, 0, 2, 0, 0, 1, 0, 0]
    assert bool((rank.memory[5] == 1).all())


def test_nothing_is_written_before_the_loop_has_come_to_it(rank: Rank) -> None:
    sending = rank.sends(0, [(1, page(1))])
    rank.tickets.admit(1)
    time.sleep(0.05)
    assert sending.is_alive()
    assert not any(rank.filled)
    rank.tickets.admit(0)
    sending.join(5)
    assert rank.filled == [0, 1, 0, 0, 0, 0, 0, 0]


def test_threads_that_send_at_once_wait_for_each_other(rank: Rank) -> None:
    threads = [rank.sends(ticket, [(ticket, page(ticket + 1))]) for ticket in range(8)]
    for ticket in range(8):
        rank.tickets.admit(ticket)
    for thread in threads:
        thread.join(5)
    assert rank.filled == list(range(1, 9))


def test_a_rank_that_has_ended_breaks_the_engine() -> None:
    own, other = Pipe()
    other.close()
    with pytest.raises(EngineBroken, match="fell apart"):
        PageChannel(own).send(0, [(1, page(1))])
