"""One model in several processes: each has a part of every layer, and the first one leads."""

from __future__ import annotations

import gc
import logging
import pickle
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

from transformers.utils import logging as transformers_logging

from engine.api import EngineError
from engine.config import EngineConfig
from engine.logs import log_process
from engine.model.kernel_paths import Choice, use_choice
from engine.model.layers.leader import Followers
from engine.model.layers.page_channel import PageChannel, receive
from engine.model.layers.paged_model import PagedModel
from engine.model.layers.shard import Shard, join, leave
from engine.model.load import choose_device, load_shard
from engine.system.secrecy import forbid_core_dumps

_log = logging.getLogger(__name__)


@contextmanager
def followers_of(
    config: EngineConfig, choice: Choice, by_kinds: bool
) -> Iterator[Followers | None]:
    """The other ranks, if `config` asks for some, for who loads the first one's part meanwhile.

    They load theirs, `by_kinds` as the first one does (`load_model`), and compute as `choice`
    says; they end if that fails here. Raises `EngineError` if one does not come up.
    """
    if config.tensor_parallel == 1:
        yield None
        return
    if choose_device(config.device).type != "cpu":
        raise EngineError("tensor_parallel: models are cut for CPUs only, and this is a GPU")
    followers = _start(config, choice, by_kinds)
    try:
        yield followers
    except BaseException:
        followers.close()
        raise


def _start(config: EngineConfig, choice: Choice, by_kinds: bool) -> Followers:
    context = get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        meeting = Path(folder) / "ranks"
        processes, connections, channels = [], [], []
        for rank in range(1, config.tensor_parallel):
            own, theirs = context.Pipe()
            filling, filled = context.Pipe()
            shard = Shard(rank, config.tensor_parallel)
            process = context.Process(
                target=follow,
                args=(theirs, filled, shard, meeting, config, choice, by_kinds),
                name=f"rank {rank}",
                daemon=True,
            )
            process.start()
            theirs.close()
            filled.close()
            processes.append(process)
            connections.append(own)
            channels.append(PageChannel(filling))
        followers = Followers(processes, connections, channels)
        followers.wait()
        join(followers.shard, meeting)
    return followers


def follow(
    connection: Connection,
    filled: Connection,
    shard: Shard,
    meeting: Path,
    config: EngineConfig,
    choice: Choice,
    by_kinds: bool,
) -> None:
    """Until the leader closes the connection, or ends."""
    # Ctrl-C reaches the whole terminal; the leader decides when its followers end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not config.core_dumps:
        forbid_core_dumps()
    log_process(f"engine, rank {shard.rank}", config.log_format, config.log_level, sys.stderr)
    transformers_logging.disable_progress_bar()
    use_choice(choice)
    connection.send(None)
    join(shard, meeting)
    try:
        model = load_shard(config, shard, by_kinds)
    except Exception as error:  # noqa: BLE001
        if not isinstance(error, EngineError):
            _log.exception("its part could not be loaded")
        with suppress(OSError):  # the leader has failed, too, and does not listen
            connection.send(f"{type(error).__name__}: {error}")
        return
    connection.send(None)
    gc.collect()
    gc.freeze()
    page = model.page
    thread = threading.Thread(target=receive, args=(filled, model.tickets, page), daemon=True)
    thread.start()
    _serve(connection, model)
    leave()


def _serve(connection: Connection, model: PagedModel) -> None:
    """What fails here leaves the leader alone in the middle of a step, and that is broken then."""
    while True:
        try:
            message = connection.recv_bytes()
        except (EOFError, OSError):
            return
        method, arguments = pickle.loads(message)
        getattr(model, method)(*arguments)
