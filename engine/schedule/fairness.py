"""Which tenant goes first, and who makes room for it; within a tenant: first come, first served.

Virtual token counters (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024): each
tenant's counter grows by the price of the tokens it is served, divided by its weight: the prompt
when it is first admitted, output as it is produced (by every sequence of a request), nothing for
a recomputation. The waiting tenant
with the smallest counter is admitted next; if its next request does not fit, nobody overtakes it. A
tenant that begins to wait is lifted to the smallest counter among those that wait, or to the
virtual time: the counter of the tenant admitted last, as it was just before. So idleness banks no
credit, and the counters of two waiting tenants differ by no more than what one of them may be
served between two admissions. Between equal counters, as lifting makes them, whoever runs fewer
requests goes first. Prompts that have been admitted are charged, so that only their latency is at
stake. Each is due when, from its admission on, prompts of twice its length have been computed, and
twice that for the tenant's second request, three times for the third; what is due first is computed
first. Whoever is to be admitted next is so as soon as any prompt that waits is due before all that
run. So a short prompt does not wait for a long one, nor a tenant that runs little for one that
runs much, and yet none is overtaken for ever.

A step is kept short for those who wait for its end, streams that decode and whoever comes next
(`engine.sequences.pace`). How short depends on who asks for more than it gets, which is a tenant
with more in its queue than the prompt that is next. Others compute their prompts as fast as they
can beside streams of such tenants alone. And prompts of such tenants, beside a stream of one that
has nothing in its queue, wait while prompts have had more of the time than decoding.

The paper never takes back what it has admitted. Here a tenant that waits while others fill every
slot or the memory makes over-served tenants yield, the most over-served first, each one's newest
request first. Tenant w takes the place of a request of tenant v only if v's counter is not below
w's, and besides

1. w then still runs no more requests, per weight, than v: a flood yields at once to whoever runs
   less; or
2. v is ahead by the price of w's prompt and that of recomputing all that v yields, together: the
   tenants take turns, each gets beyond its prompt in its turn, and they never spend more on
   recomputing than they were served in between.

Nobody yields unless the waiting request fits in the end, and nothing yields that is part of the
step being planned. Why this comes to an end: while no token is served the counters stand still, so
every exchange hands a place to a smaller counter or, between equal ones, evens out their numbers;
neither goes on for ever. Hence every exchange is one of finitely many between two tokens served,
and each token is charged once. Whoever has yielded waits first in its tenant's queue, where
the others' growing counters will make it the smallest.

Where other engines serve the same tenants, what they do counts here for whoever has requests here:
who asks at several is not served several times as much. It puts nobody far ahead of the virtual
time: what an engine did for a tenant while nobody else wanted it is not to be paid for elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from engine.config import EngineConfig
from engine.schedule.accounts import Account
from engine.sequences.group import SequenceGroup

_MOST_AHEAD = 16_384.0
"""How far beyond the virtual time what other engines do may put a counter."""
_STRETCH = 2.0
"""Prompts wait for others of so many times their own length."""


@dataclass(frozen=True, slots=True)
class Prices:
    """What a token adds to its tenant's counter."""

    prompt: float
    cached: float
    output: float

    def admission(self, group: SequenceGroup, num_cached: int) -> float:
        """The price of admitting a request with `num_cached` tokens of its prompt in the cache.

        However many sequences continue the prompt, it is computed once.
        """
        if group.is_charged:
            return 0.0
        return self.cached * num_cached + self.prompt * (len(group.request.prompt) - num_cached)


class Fairness:
    """The order between tenants; this one is no more than the order of arrival."""

    def begins_to_wait(self, account: Account, waiting: Iterable[Account]) -> None:
        """The tenant has waited for nothing so far; `waiting` are the others that wait."""

    def passed_over(self, account: Account) -> None:
        """The tenant's own limit keeps its next request from being admitted."""

    def admits(self, account: Account) -> None:
        """The tenant's next request is about to be admitted and charged."""

    def served_elsewhere(self, account: Account, amount: float) -> None:
        """Other engines have served the tenant, that has requests here, so much (`served`)."""

    def rank(self, account: Account) -> tuple[float, float]:  # noqa: ARG002 - all alike
        """Tenants of lower rank are admitted first and preempted last."""
        return 0.0, 0.0

    def patience(self, account: Account, num_before: int, num_tokens: int) -> float:  # noqa: ARG002
        """Tokens of prompts after which one of `num_tokens` is due that is admitted now.

        Its tenant runs `num_before` other requests that go before it.
        """
        return 0.0

    def may_draw_out(self, num_queued: int, streams: Collection[Account]) -> bool:  # noqa: ARG002
        """Whether a prompt may make a step longer than others should wait for it.

        `num_queued` requests of its tenant wait to be admitted, itself not counted; sequences of
        `streams` decode in the step. Here these alone are known to wait.
        """
        return not streams

    def must_pay(self, account: Account, streams: Collection[Account]) -> bool:  # noqa: ARG002
        """Whether prompts of `account` have to wait while prompts owe time to what decodes.

        Sequences of `streams` decode in the step. Here nobody is known to ask for more than it
        gets.
        """
        return False

    def yielding(
        self,
        account: Account,  # noqa: ARG002
        price: float,  # noqa: ARG002
        running: Iterable[Account],  # noqa: ARG002
        spared: Collection[str],  # noqa: ARG002
    ) -> list[SequenceGroup]:
        """Requests that make room for the next one of `account`, in the order in which they go.

        `price` is that of admitting it; `spared` are ids of requests that must stay.
        """
        return []


class VirtualTokenCounters(Fairness):
    """The tenant that was served least goes first; see the module's docstring."""

    def __init__(self, prices: Prices) -> None:
        self._prices = prices
        self._virtual_time = 0.0

    def begins_to_wait(self, account: Account, waiting: Iterable[Account]) -> None:
        """See `Fairness`."""
        least = min((other.counter for other in waiting), default=self._virtual_time)
        account.counter = max(account.counter, least)

    def passed_over(self, account: Account) -> None:
        """See `Fairness`; what a tenant's own limit costs it is no credit either."""
        account.counter = max(account.counter, self._virtual_time)

    def admits(self, account: Account) -> None:
        """See `Fairness`."""
        self._virtual_time = max(self._virtual_time, account.counter)

    def served_elsewhere(self, account: Account, amount: float) -> None:
        """See `Fairness`."""
        most = max(account.counter, self._virtual_time + _MOST_AHEAD)
        account.counter = min(account.counter + amount, most)

    def rank(self, account: Account) -> tuple[float, float]:
        """See `Fairness`; between equals, as lifting makes them, whoever runs less goes first."""
        return account.counter, len(account.running) / account.share.weight

    def patience(self, account: Account, num_before: int, num_tokens: int) -> float:
        """See `Fairness` and the module's docstring."""
        return _STRETCH * num_tokens * (num_before + 1) / account.share.weight

    def may_draw_out(self, num_queued: int, streams: Collection[Account]) -> bool:
        """See `Fairness`; who asks for no more than it gets does not heed who asks for more."""
        return not num_queued and all(len(stream.waiting) > 1 for stream in streams)

    def must_pay(self, account: Account, streams: Collection[Account]) -> bool:
        """See `Fairness`; who asks for more than it gets heeds who asks for no more."""
        return len(account.waiting) > 1 and any(not stream.waiting for stream in streams)

    def yielding(
        self,
        account: Account,
        price: float,
        running: Iterable[Account],
        spared: Collection[str],
    ) -> list[SequenceGroup]:
        """See `Fairness`."""
        victims: list[SequenceGroup] = []
        for other in sorted(running, key=self.rank, reverse=True):
            if other.counter < account.counter:
                break
            if other is not account:
                victims += self._yields(other, account, price, spared)
        return victims

    def _yields(
        self, other: Account, account: Account, price: float, spared: Collection[str]
    ) -> list[SequenceGroup]:
        """What `other` has to yield to `account`, newest first."""
        lead = other.counter - account.counter
        after = (len(account.running) + 1) / account.share.weight
        recompute = 0.0
        victims: list[SequenceGroup] = []
        for left, group in zip(
            range(len(other.running) - 1, -1, -1), reversed(other.running), strict=True
        ):
            recompute += self._prices.prompt * group.num_tokens / other.share.weight
            is_balanced = after <= left / other.share.weight
            is_ahead = lead >= price / account.share.weight + recompute
            if group.request_id in spared or not (is_balanced or is_ahead):
                break
            victims.append(group)
        return victims


def make_fairness(config: EngineConfig, prices: Prices) -> Fairness:
    """The order that `config` asks for."""
    return VirtualTokenCounters(prices) if config.fairness == "vtc" else Fairness()
