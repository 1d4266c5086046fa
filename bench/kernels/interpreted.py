"""How far the attention kernels are off in small, in Triton's interpreter.

`python -m bench.kernels.interpreted` prints one JSON object, case by case. It is a process of its
own, since Triton decides when it is first imported whether it compiles or interprets.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import torch

from bench.kernels.batches import Heads, paged, tenants

_HEADS = Heads(num_heads=4, num_kv_heads=2, head_dim=64)
_ONE_KV_HEAD = Heads(num_heads=3, num_kv_heads=1, head_dim=64)
_SECONDS = 300


def interpreted() -> dict[str, float]:
    """The largest errors of each case. Raises `subprocess.SubprocessError` if there are none."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "bench.kernels.interpreted"],
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=_SECONDS,
        check=True,
    )
    errors: dict[str, float] = json.loads(done.stdout)
    return errors


def main() -> None:
    """Check every kind of attention on a few sequences."""
    torch.manual_seed(torch.seed() % 2**32)  # fresh inputs in every run
    device = torch.device("cpu")
    decode = [(70, 1), (33, 1)]
    cases = {
        "decode": paged(decode, _HEADS, device),
        "decode_int8": paged(decode, _HEADS, device, "int8"),
        "decode_fp8": paged(decode, _HEADS, device, "fp8"),
        "grouped": tenants(2, 48, 3, 17, _HEADS, device),
        "prefill": paged([(40, 40), (70, 9)], _HEADS, device),
        "chunk": paged([(1500, 4)], _ONE_KV_HEAD, device),
    }
    print(json.dumps({name: case.error() for name, case in cases.items()}))


if __name__ == "__main__":
    main()
