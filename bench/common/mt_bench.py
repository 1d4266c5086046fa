"""The two-turn chat questions of MT-bench (FastChat's file), or stand-ins for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from bench.common.workload import question
from bench.registry import BenchError

DEFAULT_QUESTIONS: Final = Path("../shared/traces/mt_bench_questions.jsonl")
_SYNTHETIC: Final = 80

Conversation = tuple[str, ...]
"""What the user says, turn by turn."""


def conversations(path: Path) -> list[Conversation]:
    """Those of the file; short synthetic ones where there is none.

    Raises `BenchError` for a file without any.
    """
    if not path.is_file():
        return [(question(f"{i} first"), question(f"{i} then")) for i in range(_SYNTHETIC)]
    try:
        lines = path.read_text().splitlines()
        turns = [tuple(json.loads(line)["turns"]) for line in lines if line.strip()]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BenchError(f"{path}: no questions in MT-bench's format ({error})") from error
    if not turns:
        raise BenchError(f"{path}: no questions")
    return turns
