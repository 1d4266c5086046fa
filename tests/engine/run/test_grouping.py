"""Sequences that share blocks are grouped in every mode, and nobody's output changes by that."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest
import torch
from transformers import PreTrainedModel

from engine.api import EngineRequest, Namespaces, SamplingParams
from engine.assembly.assemble import load_core
from engine.batch.batch import Batch
from engine.config import EngineConfig
from engine.draft.drafter import Drafter
from engine.model.load import load_model
from engine.schedule.swap_or_recompute import Policy
from engine.sequences.plan import StepPlan
from engine.serve.core import EngineCore
from kernels.prefix_groups import GroupingRule
from tests.engine.draft.test_models import Hindsight
from tests.engine.model.test_model import generate, save_model
from tests.engine.simulated_model import random_prompt
from tests.engine.simulation import make_request, run_all_to_end, run_to_end

BLOCK_SIZE = 8
COUNT = 20


class Watched:
    """A core with what its batches held: for every group, the members' requests and its run."""

    def __init__(
        self,
        folder: Path,
        num_blocks: int,
        num_host_blocks: int = 0,
        drafter: Drafter | None = None,
        **options: object,
    ) -> None:
        config = EngineConfig(
            model_path=str(folder),
            device="cpu",
            dtype="float32",
            block_size=BLOCK_SIZE,
            step_token_budget=48,
            max_running_requests=8,
            threads=1,
            **options,  # type: ignore[arg-type]
        )
        block_bytes = load_model(config).layout.block_bytes(BLOCK_SIZE, torch.float32)
        self.core: EngineCore = load_core(
            msgspec.structs.replace(
                config,
                kv_memory_bytes=num_blocks * block_bytes,
                host_memory_bytes=num_host_blocks * block_bytes,
            )
        )
        if drafter is not None:
            self.core = EngineCore(config, self.core.info, self.core._runner, drafter=drafter)
        self.plans: list[StepPlan] = []
        self.steps: list[list[tuple[set[str], int, int]]] = []
        builder = self.core._runner._batches  # type: ignore[attr-defined]
        self._build = builder.build
        builder.build = self._watch

    @property
    def groups(self) -> list[tuple[set[str], int, int]]:
        return [group for step in self.steps for group in step]

    def _watch(self, plan: StepPlan) -> Batch:
        batch: Batch = self._build(plan)
        self.plans.append(plan)
        groups = batch.attention.groups
        if groups is not None:
            names = [
                chunk.sequence.request_id for chunk in plan.chunks for _ in (chunk, *chunk.drafts)
            ]
            starts, members = groups.member_starts.tolist(), groups.members.tolist()
            self.steps.append(
                [
                    ({names[row] for row in members[starts[g] : starts[g + 1]]}, begin, end)
                    for g, (begin, end) in enumerate(
                        zip(groups.begins.tolist(), groups.ends.tolist(), strict=True)
                    )
                ]
            )
        return batch


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("llama")


@pytest.fixture(scope="module")
def model(folder: Path) -> PreTrainedModel:
    return save_model("llama", folder)


@pytest.fixture(autouse=True)
def _short_runs_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    def rule(_: torch.device, *, batch_invariant: bool) -> GroupingRule:
        return GroupingRule(least_saved_keys=2, whole=256 if batch_invariant else 1)

    monkeypatch.setattr("engine.run.runner.rule_for", rule)


def chat(name: str, tenant: str, system: list[int], question: list[int]) -> EngineRequest:
    """A user's question behind its tenant's system prompt, which all of its users share."""
    tenant_key = tenant.encode().ljust(32, b".")
    return make_request(
        name,
        system + question,
        COUNT,
        tenant=tenant,
        namespaces=Namespaces(
            shared_key=tenant_key,
            private_key=f"{tenant}/{name}".encode().ljust(32, b"."),
            shared_tokens=len(system),
        ),
    )


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_two_tenants_prompts_are_two_groups_of_one_step(family: str, tmp_path: Path) -> None:
    model = save_model(family, tmp_path)
    watched = Watched(tmp_path, num_blocks=100)
    rng = random.Random(3)
    systems = {"a": random_prompt(rng, 40), "b": random_prompt(rng, 64)}
    expected = {}
    for tenant, system in systems.items():
        for user in range(3):
            name, question = f"{tenant}{user}", random_prompt(rng, 5 + 9 * user)
            expected[name] = generate(model, system + question, COUNT)
            watched.core.submit(chat(name, tenant, system, question))
    assert run_to_end(watched.core) == expected
    everybody = [({"a0", "a1", "a2"}, 0, 40), ({"b0", "b1", "b2"}, 0, 64)]
    assert any(sorted(step, key=lambda group: group[2]) == everybody for step in watched.steps)
    assert all(len({name[0] for name in names}) == 1 for names, _, _ in watched.groups)


@pytest.mark.parametrize("recovery", ["swap", "recompute"])
def test_preempted_requests_join_their_groups_again(
    recovery: Policy, folder: Path, model: PreTrainedModel
) -> None:
    watched = Watched(folder, 20, num_host_blocks=40, recovery=recovery, min_run_tokens=4)
    rng = random.Random(4)
    system = random_prompt(rng, 48)
    prompts = [system + random_prompt(rng, 20 + 7 * index) for index in range(5)]
    expected = {str(index): generate(model, prompt, COUNT) for index, prompt in enumerate(prompts)}
    for index, prompt in enumerate(prompts):
        watched.core.submit(make_request(str(index), prompt, COUNT))
    assert run_to_end(watched.core) == expected
    stats = watched.core.stats()
    assert stats.preemptions > 0, "the pool was meant to be too small"
    assert stats.recomputed == (stats.preemptions if recovery == "recompute" else 0)
    assert {name for names, _, _ in watched.groups for name in names} == set(expected)


def test_forks_share_the_tenants_prompt_and_behind_it_their_own(
    folder: Path, model: PreTrainedModel
) -> None:
    watched = Watched(folder, num_blocks=100)
    rng = random.Random(5)
    system = random_prompt(rng, 32)
    questions = {"x": random_prompt(rng, 17), "y": random_prompt(rng, 24)}
    for name, question in questions.items():
        watched.core.submit(make_request(name, system + question, COUNT, num_sequences=3))
    outputs = run_all_to_end(watched.core)
    for name, question in questions.items():
        alone = generate(model, system + question, COUNT)
        assert outputs[name] == dict.fromkeys(range(3), alone)
    levels = [({"x", "y"}, 0, 32), ({"x"}, 32, 48), ({"y"}, 32, 56)]
    assert any(all(level in step for level in levels) for step in watched.steps)
    complete = sum(all(level in step for level in levels) for step in watched.steps)
    spared = 5 * 32 + 2 * (48 - 32) + 2 * (56 - 32)
    assert watched.core.stats().spared_keys >= complete * spared


def test_sampled_forks_are_as_they_are_without_groups(folder: Path, model: PreTrainedModel) -> None:
    prompt = random_prompt(random.Random(6), 50)
    sampling = SamplingParams(max_tokens=COUNT, temperature=1.0, seed=7, stop_token_ids=(3,))
    request = make_request("r", prompt, num_sequences=5, sampling=sampling)
    outputs = []
    for options in ({}, {"prefix_grouping": False}, {"batch_invariant": True}):
        watched = Watched(folder, num_blocks=60, **options)
        watched.core.submit(request)
        outputs.append(run_all_to_end(watched.core))
        assert bool(watched.groups) == (not options)
        assert bool(watched.core.stats().spared_keys) == (not options)
    assert len(set(map(tuple, outputs[0]["r"].values()))) > 1
    assert outputs[0] == outputs[1] == outputs[2]


def test_the_rows_of_a_draft_are_a_group_that_reads_shared_keys_once(
    folder: Path, model: PreTrainedModel
) -> None:
    rng = random.Random(9)
    prompts = {"one": random_prompt(rng, 50), "other": random_prompt(rng, 31)}
    expected = {name: generate(model, prompt, COUNT) for name, prompt in prompts.items()}
    drafter = Hindsight({name: {0: output} for name, output in expected.items()}, 1000)
    watched = Watched(folder, num_blocks=60, drafter=drafter)
    for name, prompt in prompts.items():
        watched.core.submit(make_request(name, prompt, COUNT))
    assert run_to_end(watched.core) == expected
    drafting = [chunk for plan in watched.plans for chunk in plan.chunks if chunk.drafts]
    ends = [chunk.start // BLOCK_SIZE * BLOCK_SIZE for chunk in drafting]
    for chunk, end in zip(drafting, ends, strict=True):
        assert ({chunk.sequence.request_id}, 0, end) in watched.groups
    # Behind those, rows on the far side of a block's border share that block as well.
    spared = sum(len(chunk.drafts) * end for chunk, end in zip(drafting, ends, strict=True))
    assert 0 < spared <= watched.core.stats().spared_keys
    assert watched.core.stats().accepted_tokens > 0


def test_a_run_of_decode_steps_keeps_the_tensors_of_its_groups(
    folder: Path, model: PreTrainedModel
) -> None:
    watched = Watched(folder, num_blocks=60)
    rng = random.Random(8)
    head = random_prompt(rng, 40)
    for name in ("one", "other"):
        watched.core.submit(
            make_request(name, head + random_prompt(random.Random(name), 20), COUNT)
        )
    seen = []
    build = watched._build
    watched._build = lambda plan: seen.append(build(plan)) or seen[-1]
    run_to_end(watched.core)
    found = [batch.attention.groups for batch in seen if batch.attention.groups is not None]
    assert len(found) >= COUNT - 3
    assert len(set(map(id, found))) == 1
