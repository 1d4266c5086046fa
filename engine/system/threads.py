"""How many CPU threads may compute, and how they wait: decided here and nowhere else."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from engine.system.control_groups import cpu_quotas

_PROCESSORS = Path("/sys/devices/system/cpu")


def compute_threads(threads: int | None) -> int:
    """The configured number, or the most of `thread_counts`."""
    return max(thread_counts(threads))


def thread_counts(threads: int | None) -> list[int]:
    """The configured number; or one for each core this process may use and, where cores run several
    threads at once, one for each of these: which is faster is to be measured.

    A container with a share of the machine's time sees every core, but is stopped once its threads,
    those that only look for work included, have used up its share.
    """
    if threads:
        return [threads]
    usable = os.sched_getaffinity(0)
    counts = (physical_cores(usable), len(usable))
    return sorted({min([count, *cpu_quotas()]) for count in counts})


def threads_of_rank(threads: int | None, ranks: int) -> int | None:
    """What each of `ranks` processes that compute together is configured with.

    They wait for each other twice a layer, so each has cores of its own, as long as there are some.
    """
    return threads if ranks == 1 else max(1, min(thread_counts(threads)) // ranks)


def physical_cores(processors: Iterable[int]) -> int:
    """Of how many cores these processors, as the system numbers them, are the threads."""
    return len(set(map(_core_of, processors)))


def _core_of(processor: int) -> str:
    """All processors of its core; itself where the system does not say."""
    try:
        topology = _PROCESSORS / f"cpu{processor}" / "topology"
        return (topology / "thread_siblings_list").read_text().strip()
    except OSError:
        return str(processor)


def thread_environment(threads: int | None) -> dict[str, str]:
    """Environment of a process that computes.

    Idle OpenMP threads must sleep rather than spin for milliseconds: beside any other busy process
    (the service's event loop) a spinning pool makes every small operation tens of times slower. But
    to wake one takes some 100 us, so they look for the next piece of work for about 50 us first.
    """
    count = str(compute_threads(threads))
    return {
        "OMP_NUM_THREADS": count,
        "OMP_WAIT_POLICY": "passive",  # for OpenMP runtimes other than GNU's
        "GOMP_SPINCOUNT": "3000",
        "TOKENIZERS_PARALLELISM": "false",
    }
