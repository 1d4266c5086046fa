"""An engine's process, which finds as much memory free as is written in FREE_MEMORY_FILE."""

from __future__ import annotations

import os
from pathlib import Path

from engine.assembly import process
from engine.model import kv_memory

if __name__ == "__main__":
    free = int(Path(os.environ["FREE_MEMORY_FILE"]).read_text())
    kv_memory.available_memory = lambda: free
    process.main()
