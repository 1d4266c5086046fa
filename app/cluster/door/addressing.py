"""How a front door tells Ray Serve which replica is to have a call.

Ray sends this module from process to process by value: what it knows is elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from app.cluster.door.membership import tell


class ChosenReplica(RequestRouter):
    """Reads the replica's id from the call's `replica`; if there is none of that id: any.

    That one knows that it is not meant.
    """

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Ranks of replicas, of which Serve asks the next where none of one has room."""
        chosen = None if pending_request is None else pending_request.kwargs.get("replica")
        named = [one for one in candidate_replicas if one.replica_id.unique_id == chosen]
        return [named or candidate_replicas]

    def update_replicas(self, replicas: Iterable[RunningReplica]) -> None:
        """Called whenever replicas come or go."""
        found = list(replicas)
        super().update_replicas(found)
        tell(frozenset(one.replica_id.unique_id for one in found))
