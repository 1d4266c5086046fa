"""How many CPU threads compute, and how they wait: decided here and nowhere else."""

from __future__ import annotations

import os

from engine.run.control_groups import cpu_quotas


def compute_threads(threads: int | None) -> int:
    """The configured number, or one thread for each core this process may use.

    A container with a share of the machine's time sees every core, but is stopped once its threads,
    those that only look for work included, have used up its share.
    """
    return threads or min([len(os.sched_getaffinity(0)), *cpu_quotas()])


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
