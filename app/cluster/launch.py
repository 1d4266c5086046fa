"""From settings to an engine that is a cluster of them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from msgspec import structs

from app.settings import Settings
from engine.api import EngineError
from engine.config import EngineConfig
from engine.system.threads import compute_threads

if TYPE_CHECKING:
    from engine.client import EngineClient

ENVIRONMENT: Final = {
    # Calls and their answers stay on one event loop: five times as many messages a second.
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    # Nobody reaches replicas but through their handles: they listen to no HTTP, which besides would
    # keep one that is to go for half a minute.
    "RAY_SERVE_ENABLE_DIRECT_INGRESS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    # A process of Ray's ends that has not reached the head for so long: a door, and what it serves.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "86400",
    # Replicas say how loaded they are often enough for what is to be done about it in seconds.
    "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "2",
}

LOCAL_ENVIRONMENT: Final = {
    # Whoever can speak to Ray can run anything.
    "RAY_AUTH_MODE": "token",
    # Ray takes 127.0.0.1 for this machine's address then, as on macOS, and listens there alone.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}
"""Besides, for a cluster of this machine's own."""


def new_cluster(settings: Settings, config: EngineConfig) -> EngineClient:
    """Engines of this `config` on Ray Serve. Raises `EngineError` without the extra `cluster`."""
    os.environ |= ENVIRONMENT  # which Ray reads while it is imported
    if settings.ray_address is None:
        os.environ |= LOCAL_ENVIRONMENT
    try:
        from app.cluster.door.client import ClusterEngine
        from app.cluster.node.deployment import Cluster, Deployment
        from app.cluster.node.replica import ReplicaOptions
    except ModuleNotFoundError as error:
        raise EngineError(
            f"cluster: {error.name} is not installed: pip install 'partywall[cluster]', or in a "
            "clone .venv/bin/python install.py cluster"
        ) from error
    most_replicas = settings.max_replicas or settings.replicas
    sharing = most_replicas if settings.ray_address is None else 1
    threads = settings.threads or max(1, compute_threads(None) // sharing)
    wanted = Deployment(
        options=ReplicaOptions(
            engine=structs.replace(config, threads=threads),
            rebuild_seconds=settings.rebuild_seconds,
            silence_seconds=settings.engine_silence_seconds,
            loading_seconds=settings.engine_loading_seconds,
        ),
        num_replicas=settings.replicas,
        most_replicas=most_replicas,
        queue_seconds=settings.replica_queue_seconds,
        idle_seconds=settings.replica_idle_seconds,
        cpus=threads,
        gpus=float(settings.device == "cuda"),
        address=settings.ray_address,
        environment=ENVIRONMENT,
        drain_seconds=settings.drain_seconds,
        redeploys=settings.redeploy,
    )
    return ClusterEngine(
        Cluster(wanted),
        ready_seconds=settings.engine_loading_seconds,
        rebuild_seconds=settings.rebuild_seconds,
        cadence_seconds=settings.token_cadence_ms / 1000,
        num_replicas=settings.replicas,
    )
