"""What looks at an adapter's files before they are kept; it knows models, and nobody here does."""

from __future__ import annotations

from typing import Protocol


class Checked(Protocol):
    """What is known of an adapter whose files are right, see `AdapterRecord`."""

    @property
    def digest(self) -> bytes: ...  # noqa: D102
    @property
    def num_bytes(self) -> int: ...  # noqa: D102
    @property
    def rank(self) -> int: ...  # noqa: D102
    @property
    def modules(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def invocation(self) -> tuple[int, ...]: ...  # noqa: D102


class FilesCheck(Protocol):
    """Looks at weights as they come; what it raises is why they are not kept."""

    def feed(self, piece: bytes) -> None:
        """Look at more of them."""

    def finish(self) -> Checked:
        """All have come."""
