"""Lines of a library that would log in its own way: through this process's log, as all others."""

from __future__ import annotations

import logging
import sys
from typing import Final

from engine.config import EngineConfig
from engine.logs import log_process

_RAYS: Final = ("ray", "ray.serve")


def take_over_ray() -> None:
    """Have Ray's lines come as ours do, from warnings on; for a process that has imported it."""
    for name in _RAYS:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(logging.NOTSET)


def log_replica(config: EngineConfig) -> None:
    """How a process of Ray's logs that has an engine of this `config`."""
    take_over_ray()
    # Serve has put its own log in the place of `sys.stderr`.
    stream = sys.__stderr__ or sys.stderr
    log_process("replica", config.log_format, config.log_level, stream)
