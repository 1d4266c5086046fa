"""Which tests one of several workers runs: those of a file, and those of one service.

Files come as they lie in the folders. Unless told `--no-loadscope-reorder`, pytest-xdist would sort
them by how many tests they have: those with few and long ones would come last, and one worker would
wait for the other.
"""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling

_OF_ONE_SERVICE = {
    f"tests/end_to_end/test_{name}.py"
    for name in ("choices", "exactness", "failures", "formats", "survival", "two_tenants")
}
"""They share the fixture `service`: a second one would take longer to start than most of them."""


class SideBySide(LoadFileScheduling):
    """Keeps together what shares what it has started."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return "the service" if file in _OF_ONE_SERVICE else file
