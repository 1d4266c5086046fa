"""What an audit says of what it has found: table, picture and document."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

from app.isolation_audit.findings import Finding, findings, overall
from app.isolation_audit.observing import ARMS, Arm, Feature, Observation, told, told_by_usage
from app.isolation_audit.plot import picture
from app.isolation_audit.report import Report, document, legend, table
from app.isolation_audit.texts import Texts

SIZE = 40
TIME = Feature("ttft", "seconds")
ANSWER = Feature("ids", "answer")


def samples(*, leaks: bool) -> dict[Arm, list[Observation]]:
    """What is known is answered sooner, and shown: one's own, or also the other's if it leaks."""
    found: dict[Arm, list[Observation]] = {}
    for arm in ARMS:
        known = arm.is_sent and (leaks or arm.prober == "control")
        seconds = 0.02 if known else 0.05
        found[arm] = [
            {TIME: seconds + number * 1e-5, ANSWER: "200" if known else "404 · no [bold]ID"}
            for number in range(SIZE)
        ]
    return found


def report(*, leaks: bool) -> Report:
    parameters: dict[str, Any] = {"url": "http://server", "samples": SIZE, "alpha": 0.05}
    return Report(parameters, findings([samples(leaks=leaks)], ("ttft", "usage", "ids"), 0.05))


def printed(one: Report) -> str:
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(table(one))
    return console.export_text()


def test_the_table_has_what_each_side_saw_and_a_verdict() -> None:
    text = printed(report(leaks=False))
    assert "clean: nothing shows a tenant" in text
    assert "50.2 ms / 50.2 ms" in text
    assert "20.2 ms / 50.2 ms" in text
    assert "404 · no [bold]ID (40 of 40)" in text  # nothing in an answer is markup
    assert "leak: a tenant can tell" in printed(report(leaks=True))
    assert legend(report(leaks=True))[0].startswith("40 samples a side")


def test_the_document_is_json_with_the_figures() -> None:
    found = json.loads(json.dumps(document(report(leaks=True))))
    assert found["verdict"] == "leak"
    assert found["p_min_neighbour"] < 1e-4
    assert found["channels"]["usage"] == {"verdict": "silent", "neighbour": None, "control": None}
    assert found["channels"]["ttft"]["neighbour"]["sent"] == "20.2 ms"


def test_the_picture_has_a_panel_for_each_side_of_what_is_measured() -> None:
    root = ElementTree.fromstring(picture(report(leaks=False)))
    texts = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    headings = [text for text in texts if text and " p = " in text]
    assert [heading.partition(":")[0] for heading in headings] == [
        "ttft, neighbour",
        "ttft, control",
    ]


def test_what_is_the_same_or_new_each_time_tells_nothing() -> None:
    found = samples(leaks=False)
    for number, (arm, observed) in enumerate(found.items()):
        for index, one in enumerate(observed):
            one |= {Feature("usage", "zero"): 0.0, Feature("usage", "id"): f"{number}.{index}"}
        assert len(found[arm]) == SIZE
    (usage,) = findings([found], ("usage",), 0.05)
    assert usage == Finding("usage", "silent")
    assert overall([usage]) == "cannot tell"


@pytest.mark.parametrize("verdict", ["clean", "leak"])
def test_one_channel_that_cannot_tell_leaves_no_server_clean_but_leaks_stay(verdict: Any) -> None:
    found = [Finding("ttft", verdict), Finding("itl", "cannot tell"), Finding("ids", "silent")]
    assert overall(found) == ("leak" if verdict == "leak" else "cannot tell")
    assert overall([Finding("ttft", verdict), Finding("ids", "silent")]) == verdict


def test_leaves_of_what_is_told_are_features_by_their_path() -> None:
    usage = {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4, "audio": None}}
    cached = Feature("usage", "prompt_tokens_details.cached_tokens")
    assert told_by_usage(usage) == {cached: 4.0}
    headers = {"header.x-left": "12.5", "header.x-cache": "MISS", "header.date": "today"}
    found = told("diagnostics", headers | {"hit": True})
    assert {name.name: value for name, value in found.items()} == {
        "header.x-left": 12.5,
        "header.x-cache": "MISS",
        "hit": "True",
    }


def test_an_id_that_nobody_has_looks_like_one_that_somebody_has() -> None:
    known = "resp_0af3-Zz09"
    texts = Texts(0, 8)
    made = {texts.id_like(known) for _ in range(50)}
    assert len(made) > 45
    assert all(len(one) == len(known) and one.startswith("resp_0a") for one in made)
    assert all(one[9] == "-" and one[10:12].isalpha() and one[12:].isdigit() for one in made)


def test_a_name_that_nobody_has_differs_from_one_that_somebody_has_behind_the_model() -> None:
    texts = Texts(0, 8)
    made = {texts.name_like("model-1:support-01") for _ in range(50)}
    assert len(made) > 45
    assert all(one.startswith("model-1:") and one[-3] == "-" for one in made)
    assert {len(one) for one in made} == {len("model-1:support-01")}
