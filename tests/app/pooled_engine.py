"""The engine's own loop, scheduler and block pool behind a service; only the model is simulated.

What it computes depends on what lies in the blocks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from transformers import PreTrainedTokenizerBase

from engine.api import EVERYTHING, EngineRequest, Kind, TokenDelta
from engine.config import EngineConfig
from engine.sequences.plan import Sampled, StepPlan
from engine.serve.core import EngineCore
from engine.serve.local import LocalEngine
from tests.engine.simulated_model import EOS
from tests.engine.simulated_runner import SimulatedRunner
from tests.engine.simulation import simulated_core

BLOCK_SIZE = 16
NUM_BLOCKS = 160


class PrintableRunner(SimulatedRunner):
    """Says only what the tests' tokenizer can print."""

    def execute(self, plan: StepPlan) -> Sampled:
        sampled = super().execute(plan)
        return Sampled([EOS + 1 + token % 90 for token in sampled.token_ids], sampled.logprobs)


class PooledEngine(LocalEngine):
    """An engine in a thread, with the tokenizer that its world takes from it.

    Notes what it was asked for.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        num_blocks: int = NUM_BLOCKS,
        num_host_blocks: int = 0,
        kinds: tuple[Kind, ...] = (EVERYTHING,),
    ) -> None:
        super().__init__(self._core)
        self.tokenizer = tokenizer
        self._num_blocks = num_blocks
        self._num_host_blocks = num_host_blocks
        self._kinds = kinds
        self.cores: list[EngineCore] = []
        self.requests: list[EngineRequest] = []
        self.forgotten: list[str] = []

    @property
    def cached(self) -> dict[bytes, str]:
        """Hashes of blocks that can be found, and whose they are. To be asked at rest."""
        pool = self.cores[-1].scheduler.pool
        hashes = {block: pool.hash_of(block) for block in range(pool.num_blocks)}
        return {key: pool.owners[block] for block, key in hashes.items() if key is not None}

    async def clear(self) -> None:
        """Forget every block, before anything that is asked from here on."""
        for tenant in (await self.stats()).tenants:
            await super().forget_tenant(tenant)

    async def generate(self, request: EngineRequest) -> AsyncIterator[TokenDelta]:
        """See `EngineClient.generate`."""
        self.requests.append(request)
        deltas = super().generate(request)
        try:
            async for delta in deltas:
                yield delta
        finally:
            await deltas.aclose()  # type: ignore[attr-defined]

    async def forget_tenant(self, tenant: str) -> None:
        """See `EngineClient.forget_tenant`."""
        await super().forget_tenant(tenant)
        self.forgotten.append(tenant)

    def _core(self) -> EngineCore:
        config = EngineConfig(
            model_path="simulated",
            block_size=BLOCK_SIZE,
            step_token_budget=128,
            max_running_requests=64,
            recovery="swap" if self._num_host_blocks else "auto",
        )
        blocks, host_blocks = self._num_blocks, self._num_host_blocks
        simulated = simulated_core(
            blocks, BLOCK_SIZE, num_host_blocks=host_blocks, kinds=self._kinds
        )
        info, size = simulated.info, sum(kind.pages for kind in self._kinds)
        runner = PrintableRunner(blocks * size, BLOCK_SIZE, host_blocks * info.block_pages)
        self.cores.append(EngineCore(config, info, runner))
        return self.cores[-1]
