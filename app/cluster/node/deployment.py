"""Replicas of the engine on Ray Serve, as this service wants them: started, joined, let go of."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, Final

import msgspec
import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig
from ray.serve.exceptions import RayServeException

from app.cluster.node.local import LocalRay
from app.cluster.node.replica import EngineReplica, ReplicaOptions
from app.cluster.node.scaling import ByNeed
from app.cluster.rollout import Deployed
from app.observe.log_setup import take_over_ray
from engine.api import EngineError

APPLICATION: Final = "partywall"
_MOST_CALLS: Final = 10_000
"""At once, of all doors to one replica; each has one or two."""
_RISE_SECONDS: Final = 10.0
"""For how long more replicas must be needed, on average, before there are."""


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """What is to run where."""

    options: ReplicaOptions
    num_replicas: int
    """At least."""
    most_replicas: int
    queue_seconds: float
    """With more of them waiting at each on average there are to be more."""
    idle_seconds: float
    """For how long fewer must have been enough before one ends."""
    cpus: float
    gpus: float
    """Of each replica."""
    address: str | None
    """Of a cluster that others keep; `None`: one on this machine, for as long as it is used."""
    environment: Mapping[str, str]
    """Of its process."""
    drain_seconds: float
    """For a replica's calls to end, once it is to take no more."""
    redeploys: bool = False
    """Whether these settings are to replace those that have once replaced them."""


class Cluster:
    """A connection with a cluster."""

    def __init__(self, wanted: Deployment) -> None:
        self.redeploys = wanted.redeploys
        self._wanted = wanted
        self._local: LocalRay | None = None

    @property
    def own(self) -> Deployed:
        """What is wanted; a replica says of which one it is."""
        wanted = self._wanted
        scaling = wanted.num_replicas, wanted.most_replicas, wanted.queue_seconds
        numbers = *scaling, wanted.idle_seconds, wanted.cpus, wanted.gpus
        data = repr(numbers).encode() + msgspec.json.encode(wanted.options)
        return Deployed(
            settings=blake2b(data, digest_size=8).hexdigest(),
            model=wanted.options.engine.model_path,
            by=socket.gethostname(),
            at=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    @property
    def head(self) -> str | None:
        """Where the cluster's head listens, once it is connected."""
        return ray.get_runtime_context().gcs_address if ray.is_initialized() else None

    def connect(self) -> Any:
        """A handle to the replicas that there are, `None` if nobody has deployed any.

        Raises `EngineError` where the cluster cannot be reached.
        """
        with _told():
            take_over_ray()
            self._connect()
            _start_serve()
            if APPLICATION in serve.status().applications:
                return serve.get_app_handle(APPLICATION)
            return None

    def deploy(self, deployed: Deployed) -> Any:
        """Have the replicas run, in place of others one by one; returns a handle to them.

        Raises `EngineError` where that is refused.
        """
        with _told():
            return serve.run(self._application(deployed), name=APPLICATION, route_prefix=None)

    def close(self) -> None:
        """Leave the cluster; one that was started for this service ends, replicas and all."""
        if self._local is None:
            ray.shutdown()
        else:
            self._local.close()

    def _connect(self) -> None:
        if ray.is_initialized():
            return
        wanted = self._wanted
        if wanted.address is not None:
            ray.init(wanted.address, configure_logging=False, log_to_driver=False)
        else:
            cpus = max(os.cpu_count() or 1, int(wanted.most_replicas * wanted.cpus))
            self._local = LocalRay(cpus)
        _end_listener()

    def _number(self) -> dict[str, Any]:
        """How many replicas there are to be, as Serve is told."""
        wanted = self._wanted
        if wanted.most_replicas == wanted.num_replicas:
            return {"num_replicas": wanted.num_replicas}
        policy = AutoscalingPolicy(  # type: ignore[no-untyped-call]
            policy_function=ByNeed, policy_kwargs={"queue_seconds": wanted.queue_seconds}
        )
        scaling = AutoscalingConfig(
            min_replicas=wanted.num_replicas,
            max_replicas=wanted.most_replicas,
            upscale_delay_s=_RISE_SECONDS,
            downscale_delay_s=wanted.idle_seconds,
            look_back_period_s=_RISE_SECONDS + 1,  # Ray wants it longer than 10 s
            policy=policy,
        )
        return {"autoscaling_config": scaling}

    def _application(self, deployed: Deployed) -> serve.Application:
        wanted, options = self._wanted, msgspec.json.encode(self._wanted.options)
        router: Any = "app.cluster.door.addressing.ChosenReplica"
        as_replicas = serve.deployment(
            name="engine",
            **self._number(),
            max_ongoing_requests=_MOST_CALLS,
            graceful_shutdown_timeout_s=wanted.drain_seconds,
            request_router_config=RequestRouterConfig(request_router_class=router),
            ray_actor_options={
                "num_cpus": wanted.cpus,
                "num_gpus": wanted.gpus,
                "runtime_env": {"env_vars": dict(wanted.environment)},
            },
        )
        told = msgspec.json.encode(deployed)
        application: serve.Application = as_replicas(EngineReplica).bind(options, told)
        return application


def _start_serve() -> None:
    try:
        serve.start(proxy_location="Disabled")
    except ValueError:  # another door has just started it
        serve.start(proxy_location="Disabled")


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except (ConnectionError, RuntimeError, ValueError, RayError, RayServeException) as error:
        raise EngineError(f"the cluster: {error}") from error


def _end_listener() -> None:
    """Have a thread of Ray's end where the head is lost, which prints what others have failed of.

    It asks a lost head again and again without a pause, for which it takes a core, and the time of
    all streams. Ray has no public way to do without it.
    """
    ray._private.worker.global_worker.threads_stopped.set()
