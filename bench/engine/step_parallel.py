"""Steps of a model in several processes beside those of the same model in one, in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from statistics import median

import msgspec
from rich.table import Table

from bench.engine.step_cases import WARM_UP_STEPS, StepBench
from engine.config import EngineConfig
from engine.model.kernel_paths import choose_kernel_paths, use_choice
from engine.serve.core import EngineCore
from engine.system.threads import threads_of_rank


class ParallelBench:
    """A model in `ranks` processes, and in this one with as many threads as they have together."""

    def __init__(self, config: EngineConfig, ranks: int, num_steps: int) -> None:
        """Measured are `num_steps` steps of either."""
        share = threads_of_rank(config.threads, ranks)
        assert share is not None
        configs = [
            msgspec.structs.replace(config, tensor_parallel=count, threads=share * ranks)
            for count in (1, ranks)
        ]
        self._benches = [StepBench(one, num_steps, ()) for one in configs]
        self._ranks = ranks
        self._choices = [
            choose_kernel_paths(msgspec.structs.replace(config, threads=threads))
            for threads in (share * ranks, share)
        ]
        self.info = self._benches[0].info
        self.is_fused = self._benches[0].is_fused
        self._stack = ExitStack()

    def __enter__(self) -> ParallelBench:
        for bench in self._benches:
            self._stack.enter_context(bench)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def compared(
        self, batches: Iterable[int], context: int, chunk: int
    ) -> tuple[dict[str, float], Table]:
        """Whole steps behind `context`: ratios, several processes over one, and a table."""
        cases: dict[str, Callable[[StepBench], EngineCore]] = {
            f"decode_{batch}": partial(StepBench.core_that_decodes, batch=batch, context=context)
            for batch in batches
        }
        cases["prefill"] = partial(StepBench.core_that_prefills, chunk=chunk, context=context)
        columns = ("step", "one process", f"{self._ranks} processes", "ratio")
        table = Table(*columns, title="a whole step, us")
        figures = {}
        for case, begin in cases.items():
            seconds = self._in_turns(begin)
            ratio = median(several / one for one, several in seconds)
            figures[f"parallel_over_one_{case}"] = ratio
            medians = (f"{1e6 * median(column):,.0f}" for column in zip(*seconds, strict=True))
            table.add_row(case, *medians, f"{ratio:.2f}")
        return figures, table

    def _in_turns(self, begin: Callable[[StepBench], EngineCore]) -> list[tuple[float, float]]:
        """Seconds of steps: in one process, and in several."""
        cores = []
        for bench, choice in zip(self._benches, self._choices, strict=True):
            use_choice(choice)
            cores.append(begin(bench))
        taken = []
        for _ in range(self._benches[0].num_turns):
            seconds = []
            for bench, choice, core in zip(self._benches, self._choices, cores, strict=True):
                use_choice(choice)
                seconds.append(bench.plain_step(core))
            taken.append((seconds[0], seconds[1]))
        return taken[WARM_UP_STEPS:]
