"""Prompts looked for behind floods, on scripted answers and on a small real model."""

import argparse
import json
from pathlib import Path

import pytest

from bench import __main__ as cli
from bench.tenants import leases
from engine.api import CachePolicy


@pytest.mark.parametrize(("policy", "found"), [(leases.LEASE, True), (CachePolicy(), False)])
def test_only_a_lease_brings_a_prompt_through_a_flood(policy: CachePolicy, found: bool) -> None:
    options = argparse.Namespace(pool_blocks=512, prompt_tokens=2048, flood=10.0)
    assert [leases._is_found(options, policy, trial) for trial in range(3)] == [found] * 3


@pytest.mark.exhaustive
def test_it_times_leased_prompts_and_what_leases_cost(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "figures.json"
    given = ["leases", "--model", str(model), "--json", str(out), "--threads", "1"]
    given += ["--trials", "2", "--prompt-tokens", "160", "--pool-blocks", "512", "--kv-mib", "1"]
    given += ["--prompts", "2", "--floods", "1", "--rounds", "1"]
    monkeypatch.setattr("sys.argv", ["bench", *given])
    assert cli.main() == 0
    found: dict[str, float] = json.loads(out.read_text())["figures"]
    assert found.keys() == leases.FIGURES.keys()
    assert (found["leased_found"], found["plain_found"]) == (2, 0)
    assert min(found["ttft_ratio_leased_over_warm"], found["throughput_ratio"]) > 0
