"""Everything that can go wrong here, typed; messages name the field or the thing at fault."""

from __future__ import annotations

from collections.abc import Sequence


class StoreError(Exception):
    """Base of this package's errors."""


class StoreUnavailable(StoreError):
    """Redis does not answer, or refuses to work right now; a write may or may not have happened."""


class StoreReadOnly(StoreUnavailable):
    """Redis takes no writes, for a `reason`: nothing was written, it can be read."""

    def __init__(self, reason: str, refusal: str) -> None:
        super().__init__(f"Redis takes no writes, {reason}: {refusal}")
        self.reason = reason


class StoreUnsupported(StoreError):
    """The server is too old, or not one that the store can use."""


class BackupUnusable(StoreError):
    """A file cannot be restored."""


class StoreNotEmpty(StoreError):
    """Something is in the store that a backup would be restored over."""

    def __init__(self) -> None:
        super().__init__("the store is not empty; --replace removes all that is in it")


class SealError(StoreError):
    """Something in this Redis is encrypted, and cannot be read."""


class PepperMismatch(SealError):
    """A pepper is not known that something in this Redis was hashed or encrypted with."""

    def __init__(self, what: str = "what is in this store") -> None:
        super().__init__(
            f"pepper_file: the pepper is not the one that {what} was hashed or encrypted with; "
            "start with the original pepper file, or have it among other_pepper_files, or start "
            "with an empty store"
        )


class SealUnknown(SealError):
    """A record is encrypted under a secret that is not known here."""

    def __init__(self, key_id: str, place: tuple[str, ...]) -> None:
        super().__init__(f"{' '.join(place)} is encrypted under a key that is not known: {key_id}")


class SealBroken(SealError):
    """An encrypted record was altered, or lies where another one was."""

    def __init__(self, place: tuple[str, ...]) -> None:
        super().__init__(f"{' '.join(place)} was altered, or is in the place of another record")


class SealMissing(SealBroken):
    """A record is in clear where only sealed ones are taken."""

    def __init__(self, place: tuple[str, ...]) -> None:
        StoreError.__init__(
            self,
            f"{' '.join(place)} is not sealed: whoever can write to Redis may have put it there; "
            "only after an update from a version that sealed none: partywall store seal",
        )


class StoreInUse(StoreError):
    """Another process owns the embedded store of a data directory; `pid` names it."""

    def __init__(self, data_dir: str, pid: int | None) -> None:
        owner = "another process" if pid is None else f"process {pid}"
        super().__init__(f"the data directory {data_dir} is in use by {owner}")
        self.pid = pid


class StoreFailed(StoreError):
    """The embedded store could not be started."""


class StoreConflict(StoreError):
    """What is there does not allow this, or others keep changing it; nothing was changed."""


class PromptsExceeded(StoreError):
    """An owner has as many prompts, versions or bytes of them as it may; nothing was changed."""


class TooLargeToStore(StoreError):
    """A blob is larger than all that its tenant may keep."""

    def __init__(self, tenant_id: str, num_bytes: int) -> None:
        super().__init__(f"{num_bytes} bytes are more than tenant {tenant_id!r} may keep")


class TenantExists(StoreError):
    """A tenant with this id is there already."""

    def __init__(self, tenant_id: str) -> None:
        super().__init__(f"tenant {tenant_id!r} exists already")


class TenantNotFound(StoreError):
    """There is no tenant with this id."""

    def __init__(self, tenant_id: str) -> None:
        super().__init__(f"there is no tenant {tenant_id!r}")


class KeyNotFound(StoreError):
    """The tenant has no API key with this id; `None` asked for any that can be rotated."""

    def __init__(self, key_id: str | None) -> None:
        super().__init__(
            "there is no live key" if key_id is None else f"there is no key {key_id!r}"
        )


class TokenNotFound(StoreError):
    """There is no admin token with this id in the store."""

    def __init__(self, token_id: str) -> None:
        super().__init__(f"there is no admin token {token_id!r}")


class GroupExists(StoreError):
    """A share group with this id is there already."""

    def __init__(self, group_id: str) -> None:
        super().__init__(f"share group {group_id!r} exists already")


class GroupNotFound(StoreError):
    """There is no share group with this id."""

    def __init__(self, group_id: str) -> None:
        super().__init__(f"there is no share group {group_id!r}")


class UsageRefused(StoreError):
    """What somebody has used cannot be added to what lies in its place; it is kept for later."""

    def __init__(self, owners: Sequence[str]) -> None:
        super().__init__(f"something else lies where the usage of {', '.join(owners)} is to be")


class PromptNotFound(StoreError):
    """The owner has no system prompt with this name, or not in this version."""

    def __init__(self, name: str, version: int | None = None) -> None:
        suffix = "" if version is None else f" in version {version}"
        super().__init__(f"there is no prompt {name!r}{suffix}")


class AdapterNotFound(StoreError):
    """The owner has no adapter with this name, or not in this version."""

    def __init__(self, name: str, version: int | None = None) -> None:
        suffix = "" if version is None else f" in version {version}"
        super().__init__(f"there is no adapter {name!r}{suffix}")


class AdaptersExceeded(StoreError):
    """An owner has as many adapters, versions or bytes of them as it may; nothing was changed."""


class FileGone(StoreError):
    """An uploaded file was deleted, or has expired, while it was read."""

    def __init__(self, file_id: str) -> None:
        super().__init__(f"there is no file {file_id!r}")


class FilesExceeded(StoreError):
    """A tenant has as many uploaded files, or bytes of them, as it may; nothing was changed."""


class InvalidField(StoreError):
    """A value that cannot be accepted; `field` names it."""

    def __init__(self, field: str, complaint: str) -> None:
        super().__init__(f"{field}: {complaint}")
        self.field = field


class MissingVariable(InvalidField):
    """A placeholder of a prompt was given no value."""

    def __init__(self, name: str) -> None:
        super().__init__(f"variables.{name}", "the prompt needs a value for it")


class UnknownVariable(InvalidField):
    """A value was given for a placeholder that the prompt does not hold."""

    def __init__(self, name: str) -> None:
        super().__init__(f"variables.{name}", "the prompt has no such placeholder")
