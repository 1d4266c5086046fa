"""One thing that was looked at, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Grade = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Check:
    """What was found of one part of the machine; unless it is `ok`, with what to do about it."""

    part: str
    grade: Grade
    """`fail` where a service would not start, or would not serve."""
    what: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.what}; {self.remedy}" if self.remedy else self.what


def require(checks: Iterable[Check]) -> None:
    """Raises `ValueError` for the first of them that would let a start fail."""
    for check in checks:
        if check.grade == "fail":
            raise ValueError(str(check))
