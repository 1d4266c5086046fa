"""lm-eval: a small task of our own gives the same scores here as with the transformers backend."""

import json
import os
import random

import lm_eval
import pytest
from lm_eval.tasks import TaskManager

URL = os.environ["OPENAI_BASE_URL"]
NAME = os.environ["SUITE_MODEL"]
FOLDER = os.environ["SUITE_MODEL_FOLDER"]
COLOURS = ["red", "blue", "green", "white", "black", "yellow", "brown", "grey"]
THINGS = {"grass": "green", "snow": "white", "blood": "red", "coal": "black", "the sky": "blue"}

# Two evaluations, one of them in another process of the same machine.
pytestmark = pytest.mark.timeout(1500)

CHOICES = """
task: colours
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_target: gold
doc_to_choice: choices
metric_list: [{metric: acc}, {metric: acc_norm}]
"""
GENERATION = """
task: continued
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{choices[gold]}}"
generation_kwargs: {until: ["."], do_sample: false, max_gen_toks: 12}
metric_list: [{metric: exact_match}]
"""
PERPLEXITY = """
task: fluency
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{question}} {{choices[gold]}}."
metric_list: [{metric: bits_per_byte}]
"""
TASKS = {"colours": CHOICES, "continued": GENERATION, "fluency": PERPLEXITY}


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> TaskManager:
    folder = tmp_path_factory.mktemp("tasks")
    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps(one) + "\n" for one in questions()))
    for name, text in TASKS.items():
        (folder / f"{name}.yaml").write_text(text.replace("DATA", str(data)))
    return TaskManager(include_path=str(folder), include_defaults=False)


def questions() -> list[dict[str, object]]:
    shapes = ["The colour of {} is", "Everybody knows that {} is", "If you look at {}, you see"]
    drawn = random.Random(1)
    found: list[dict[str, object]] = []
    for thing, colour in THINGS.items():
        for shape in shapes:
            choices = [colour, *drawn.sample([one for one in COLOURS if one != colour], 3)]
            drawn.shuffle(choices)
            asked = {"question": shape.format(thing), "choices": choices}
            found.append({**asked, "gold": choices.index(colour)})
    return found


def scores(model: str, arguments: dict[str, object], tasks: TaskManager) -> dict[str, dict]:
    found = lm_eval.simple_evaluate(
        model=model,
        model_args=arguments,
        tasks=list(TASKS),
        task_manager=tasks,
        log_samples=True,
        device="cpu",
    )
    return {"results": found["results"], "samples": found["samples"]}


@pytest.fixture(scope="module")
def served(tasks: TaskManager) -> dict[str, dict]:
    arguments = {"model": NAME, "base_url": f"{URL}/completions", "tokenizer": FOLDER}
    return scores(
        "local-completions", {**arguments, "max_length": 2048, "num_concurrent": 4}, tasks
    )


@pytest.fixture(scope="module")
def reference(tasks: TaskManager) -> dict[str, dict]:
    return scores("hf", {"pretrained": FOLDER, "dtype": "float32", "max_length": 2048}, tasks)


@pytest.mark.parametrize(
    ("task", "metric"),
    [
        ("colours", "acc,none"),
        ("colours", "acc_norm,none"),
        ("continued", "exact_match,none"),
        ("fluency", "bits_per_byte,none"),
    ],
)
def test_scores(served: dict, reference: dict, task: str, metric: str) -> None:
    found, expected = (one["results"][task][metric] for one in (served, reference))
    print(task, metric, found, expected)
    assert found == pytest.approx(expected, abs=2e-3)


def test_greedy_texts(served: dict, reference: dict) -> None:
    found, expected = (
        [sample["resps"] for sample in one["samples"]["continued"]] for one in (served, reference)
    )
    assert found == expected


def test_log_likelihoods(served: dict, reference: dict) -> None:
    for here, there in zip(
        served["samples"]["colours"], reference["samples"]["colours"], strict=True
    ):
        for one, other in zip(here["resps"], there["resps"], strict=True):
            assert float(one[0][0]) == pytest.approx(float(other[0][0]), abs=2e-3)
