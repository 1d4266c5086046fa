"""How hard the tests try: `make test` for minutes and alike each time, `make test-all` for longer.

Hypothesis' profile says which: `quick` draws the same examples in every run, so that a change is
judged by what it changes; `exhaustive` draws more of them, and fresh ones (`make test-all` prints
the seed). What is long and rarely finds anything is marked `exhaustive`, and runs there alone; what
draws `scaled` examples without Hypothesis is marked so, and runs there again.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

_QUICK_EXAMPLES = 100
_EXHAUSTIVE_EXAMPLES = 200


def register_profiles() -> None:
    """Tell Hypothesis of both profiles, and choose `quick`; its option chooses the other one."""
    slow = [HealthCheck.too_slow]  # on a busy machine everything is
    settings.register_profile(
        "quick",
        max_examples=_QUICK_EXAMPLES,
        deadline=None,
        derandomize=True,
        suppress_health_check=slow,
    )
    settings.register_profile(
        "exhaustive",
        max_examples=_EXHAUSTIVE_EXAMPLES,
        deadline=None,
        print_blob=True,
        suppress_health_check=slow,
    )
    settings.load_profile("quick")


def scaled(count: int, most: int | None = None) -> int:
    """So many examples, samples or questions in a quick run; more, up to `most`, in the other."""
    wanted = count * settings().max_examples // _QUICK_EXAMPLES
    return wanted if most is None else min(wanted, most)
