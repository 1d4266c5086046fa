"""Open Responses (openresponses.org): the 17 cases that its compliance suite documents.

That suite is not on a package index. Its cases are written here by their published description, and
what comes back is checked against the specification's own types (`openresponses-types`).
"""

import json
import os
import typing
from collections.abc import Iterator

import httpx
import openresponses_types as spec
import pytest
from pydantic import BaseModel
from websockets.sync.client import ClientConnection, connect

URL = os.environ["OPENAI_BASE_URL"]
MODEL = os.environ["SUITE_MODEL"]
HEADERS = {"authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
ENDS = {"response.completed", "response.incomplete", "response.failed", "error"}
PIXEL = "R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather for a location",
    "parameters": {
        "type": "object",
        "properties": {"location": {"type": "string", "description": "The city and state"}},
        "required": ["location"],
    },
}


def event_types() -> Iterator[tuple[str, type[BaseModel]]]:
    for name, model in vars(spec).items():
        if name.endswith("StreamingEvent"):
            kind = model.model_fields["type"].annotation
            values = typing.get_args(kind) or [member.value for member in kind]
            yield from ((value, model) for value in values)


EVENTS = dict(event_types())


def message(role: str, content: object, **more: object) -> dict[str, object]:
    return {"type": "message", "role": role, "content": content, **more}


def checked(resource: object, model: type[BaseModel] = spec.ResponseResource) -> dict:
    """A document of the API, once it is what the specification says."""
    model.model_validate_json(json.dumps(resource), strict=True)
    return resource


def checked_end(events: list[dict]) -> dict:
    """The response that a stream ended with; each of its events is what the specification says."""
    for event in events:
        EVENTS[event["type"]].model_validate_json(json.dumps(event), strict=True)
    return checked(events[-1]["response"])


def post(body: dict, path: str = "/responses") -> httpx.Response:
    return httpx.post(f"{URL}{path}", json=body, headers=HEADERS, timeout=300)


def respond(**body: object) -> dict:
    answer = post({"model": MODEL, **body})
    assert answer.status_code == 200, answer.text
    response = checked(answer.json())
    assert response["output"]
    return response


def completed(response: dict) -> None:
    assert response["status"] == "completed"


@pytest.fixture
def socket() -> Iterator[ClientConnection]:
    with open_socket() as opened:
        yield opened


def open_socket() -> ClientConnection:
    url = f"{URL.replace('http', 'ws', 1)}/responses"
    return connect(url, additional_headers=HEADERS, max_size=None)


def turn(socket: ClientConnection, **body: object) -> list[dict]:
    """The events of one response over a socket."""
    socket.send(json.dumps({"type": "response.create", "model": MODEL, **body}))
    events = [json.loads(socket.recv(timeout=300))]
    while events[-1]["type"] not in ENDS:
        events.append(json.loads(socket.recv(timeout=300)))
    return events


def code_of(events: list[dict]) -> str:
    """The code of the error that a turn ended with."""
    last = events[-1]
    error = last.get("error") or last["response"]["error"]
    if last["type"] == "error":
        spec.WebSocketErrorEvent.model_validate_json(json.dumps(last), strict=True)
    return error["code"]


def test_basic_response() -> None:
    completed(respond(input=[message("user", "Say hello in exactly 3 words.")]))


def test_assistant_phase() -> None:
    history = [
        message("assistant", "I should answer with the saved number.", phase="commentary"),
        message("assistant", "The number is four.", phase="final_answer"),
        message("user", "Repeat only the number."),
    ]
    completed(respond(input=history))


def test_response_output_phase_schema() -> None:
    pytest.skip("it checks the suite's own schema, and sends nothing")


def test_streaming_response() -> None:
    body = {"model": MODEL, "input": [message("user", "Count from 1 to 5.")], "stream": True}
    answer = post(body)
    data = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    events = [json.loads(one) for one in data if one != "[DONE]"]
    assert len(events) > 1
    completed(checked_end(events))


def test_websocket_response(socket: ClientConnection) -> None:
    events = turn(socket, input=[message("user", "Count from 1 to 3.")])
    completed(checked_end(events))


def test_websocket_sequential_responses(socket: ClientConnection) -> None:
    for word in ("first", "second"):
        events = turn(socket, store=False, input=f"Reply with exactly: {word}")
        completed(checked_end(events))


def test_websocket_continuation(socket: ClientConnection) -> None:
    told = "Remember the code word: cobalt. Reply with OK."
    first = checked_end(turn(socket, store=False, input=told))
    asked = "What is the code word? Reply with only the code word."
    events = turn(socket, store=False, previous_response_id=first["id"], input=asked)
    completed(checked_end(events))


def test_websocket_reconnect_store_false_recovery(socket: ClientConnection) -> None:
    told = "Remember the code word: copper. Reply with OK."
    first = checked_end(turn(socket, store=False, input=told))
    with open_socket() as again:
        asked = {"store": False, "input": "What is the code word?"}
        events = turn(again, previous_response_id=first["id"], **asked)
        assert code_of(events) == "previous_response_not_found"
        completed(checked_end(turn(again, **asked)))


def test_websocket_previous_response_not_found(socket: ClientConnection) -> None:
    missing = "resp_openresponses_missing"
    events = turn(socket, store=False, previous_response_id=missing, input="This should fail.")
    assert code_of(events) == "previous_response_not_found"


def test_websocket_failed_continuation_evicts_cache(socket: ClientConnection) -> None:
    told = "Remember the code word: ember. Reply with OK."
    first = checked_end(turn(socket, store=False, input=told))
    output = {"type": "function_call_output", "call_id": "call_missing", "output": "No call."}
    continued = {"store": False, "previous_response_id": first["id"]}
    assert code_of(turn(socket, input=[output], **continued))
    events = turn(socket, input="Reply with exactly: stale", **continued)
    assert code_of(events) == "previous_response_not_found"


def test_websocket_compact_new_chain(socket: ClientConnection) -> None:
    history = [message("user", "The code word is amber."), message("assistant", "Understood.")]
    compacted = post({"model": MODEL, "input": history}, "/responses/compact").json()
    checked(compacted, spec.CompactResource)
    asked = message("user", "What is the code word?")
    completed(checked_end(turn(socket, store=False, input=[*compacted["output"], asked])))


def test_system_prompt() -> None:
    pirate = message("system", "You are a pirate. Always respond in pirate speak.")
    completed(respond(input=[pirate, message("user", "Say hello.")]))


def test_tool_calling() -> None:
    asked = message("user", "What's the weather like in San Francisco?")
    response = respond(input=[asked], tools=[WEATHER])
    assert "function_call" in [item["type"] for item in response["output"]]


def test_image_input() -> None:
    text = {"type": "input_text", "text": "What do you see in this image?"}
    image = {"type": "input_image", "image_url": f"data:image/gif;base64,{PIXEL}"}
    completed(respond(input=[message("user", [text, image])]))


def test_multi_turn() -> None:
    history = [
        message("user", "My name is Alice."),
        message("assistant", "Hello Alice! Nice to meet you. How can I help you today?"),
        message("user", "What is my name?"),
    ]
    completed(respond(input=history))


def test_compact_response() -> None:
    history = [
        message("user", "We agreed to launch on Tuesday and notify support first."),
        message("assistant", "Understood: Tuesday, with support notified beforehand."),
    ]
    body = {"model": MODEL, "input": history, "prompt_cache_key": "openresponses-compact-test"}
    answer = post(body, "/responses/compact")
    assert answer.status_code == 200, answer.text
    compacted = checked(answer.json(), spec.CompactResource)
    assert compacted["object"] == "response.compaction"
    assert "compaction" in [item["type"] for item in compacted["output"]]


def test_compact_missing_model() -> None:
    answer = post({"input": [message("user", "Compact this.")]}, "/responses/compact")
    assert answer.status_code in (400, 422)
