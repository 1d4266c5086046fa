"""Starts the ranks of a model: one process more for each rank behind the first."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

from engine.api import EngineError
from engine.config import EngineConfig
from engine.model.kernel_paths import Choice
from engine.model.layers.leader import Followers
from engine.model.layers.shard import Shard, join
from engine.model.load import choose_device
from engine.model.parallel.follower import follow


@contextmanager
def followers_of(config: EngineConfig, choice: Choice) -> Iterator[Followers | None]:
    """The other ranks, if `config` asks for some, for who loads the first one's part meanwhile.

    They load theirs, and compute as `choice` says; they end if that fails here. Raises
    `EngineError` if one does not come up.
    """
    if config.tensor_parallel == 1:
        yield None
        return
    if choose_device(config.device).type != "cpu":
        raise EngineError("tensor_parallel: models are cut for CPUs only, and this is a GPU")
    followers = _start(config, choice)
    try:
        yield followers
    except BaseException:
        followers.close()
        raise


def _start(config: EngineConfig, choice: Choice) -> Followers:
    context = get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        meeting = Path(folder) / "ranks"
        processes, connections = [], []
        for rank in range(1, config.tensor_parallel):
            own, theirs = context.Pipe()
            shard = Shard(rank, config.tensor_parallel)
            process = context.Process(
                target=follow,
                args=(theirs, shard, meeting, config, choice),
                name=f"rank {rank}",
                daemon=True,
            )
            process.start()
            theirs.close()
            processes.append(process)
            connections.append(own)
        followers = Followers(processes, connections)
        followers.wait()
        join(followers.shard, meeting)
    return followers
