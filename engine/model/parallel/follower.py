"""A rank behind the first one: a process that loads its part and calls what the leader tells it."""

from __future__ import annotations

import gc
import logging
import pickle
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path

from transformers.utils import logging as transformers_logging

from engine.api import EngineError
from engine.config import EngineConfig
from engine.logs import log_process
from engine.model.kernel_paths import Choice, use_choice
from engine.model.layers.paged_model import PagedModel
from engine.model.layers.shard import Shard, join, leave
from engine.model.load import load_shard
from engine.system.core_dumps import forbid_core_dumps

_log = logging.getLogger(__name__)


def follow(
    connection: Connection, shard: Shard, meeting: Path, config: EngineConfig, choice: Choice
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
        model = load_shard(config, shard)
    except Exception as error:  # noqa: BLE001
        if not isinstance(error, EngineError):
            _log.exception("its part could not be loaded")
        connection.send(f"{type(error).__name__}: {error}")
        return
    connection.send(None)
    gc.collect()
    gc.freeze()
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
