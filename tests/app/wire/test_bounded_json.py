"""What a JSON body may be made of."""

from __future__ import annotations

import json
import threading
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.wire import bounded_json
from app.wire.bounded_json import MAX_MEMBERS, MAX_VALUES, decode_json
from app.wire.chat import ChatBody
from app.wire.common import MAX_ITEMS, parse
from app.wire.errors import ApiError
from app.wire.responses import CreateBody
from tests.app.conftest import MODEL, World

_documents = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def refused(data: bytes) -> ApiError:
    with pytest.raises(ApiError) as refusal:
        decode_json(data)
    assert refusal.value.status == 400
    return refusal.value


@given(_documents, st.booleans())
def test_a_document_is_what_every_parser_makes_of_it(document: Any, ascii_only: bool) -> None:
    data = json.dumps(document, ensure_ascii=ascii_only).encode()
    assert decode_json(data) == document


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b'{"a": "\xff"}',
        b'{"a": "\\ud800"}',
        b'{"a": "\\udc00\\ud800"}',
        b'{"a": NaN}',
        b'{"a": -Infinity}',
        b'{"a": 1e400}',
        b'{"a": ' + b"1" * 5000 + b"}",
        b"[" * 30_000 + b"]" * 30_000,
        b'{"a": ' * 9_000 + b"1" + b"}" * 9_000,
        b'\xef\xbb\xbf{"a": 1}',
        b'"' * 11,
        b'{"a": "\\"}',
    ],
)
def test_what_is_no_json_is_refused(data: bytes) -> None:
    assert refused(data).code == "invalid_json"


@given(st.text(alphabet='\\"a{,', max_size=40), st.integers(1, 9))
def test_a_document_is_the_same_where_its_escapes_are_looked_at_in_pieces(
    text: str, piece: int
) -> None:
    document = {text: [text], "end": 1}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(bounded_json, "_PIECE_BYTES", piece)
        assert decode_json(json.dumps(document).encode()) == document


def test_no_call_looks_at_all_of_a_long_document_for_escapes() -> None:
    pieces = list(bounded_json._without_escapes(b"\\\\a" * 1_000_000 + b"\\"))
    assert b"".join(pieces) == b"a" * 1_000_000 + b"\\"
    assert max(map(len, pieces)) < 40_000
    assert len(list(bounded_json._without_escapes(b"\\" * 999_999))) > 10


def test_long_documents_are_decoded_one_at_a_time_and_leave_the_others_as_much_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoding, most, rests = 0, 0, list[float]()
    decoded = bounded_json._decoded

    def slowly(data: bytes, kind: Any) -> Any:
        nonlocal decoding, most
        decoding += 1
        most = max(most, decoding)
        threading.Event().wait(0.02)
        decoding -= 1
        return decoded(data, kind)

    monkeypatch.setattr(bounded_json, "_decoded", slowly)
    monkeypatch.setattr(bounded_json, "sleep", rests.append)
    body = json.dumps({"input": "x" * 300_000}).encode()
    threads = [threading.Thread(target=decode_json, args=(body,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert len(rests) == 3
    assert min(rests) >= 0.02
    decode_json(b'{"input": "short"}')
    assert len(rests) == 3


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b'{"a": 1, "a": 1}', "a"),
        (b'{"x": [{"b": 1, "c": {}, "b": 2}]}', "b"),
        (b'{"q\\"": 1, "p": "{\\"p\\": 1, \\"p\\": 2}", "q\\u0022": 1}', 'q"'),
    ],
)
def test_a_name_that_stands_twice_is_refused_by_name(data: bytes, name: str) -> None:
    error = refused(data)
    assert error.code == "invalid_json"
    assert repr(name) in error.message


@pytest.mark.parametrize(
    ("data", "param"),
    [
        (b'{"messages": [' + b",".join([b'{"role": "user"}'] * MAX_VALUES) + b"]}", "messages"),
        (b'{"input": [' + b",".join([b"[]"] * MAX_VALUES) + b"]}", "input"),
        (b'{"x": [' + b",".join([b"0"] * MAX_VALUES) + b", 0]}", None),
        (b"{" + b",".join(b'"%d": 0' % n for n in range(MAX_VALUES + 1)) + b"}", None),
    ],
)
def test_more_values_than_a_request_has_are_refused_before_they_are_made(
    data: bytes, param: str | None
) -> None:
    error = refused(data)
    assert (error.code, error.param) == ("too_many_values", param)


def test_an_object_of_too_many_members_is_refused_by_its_field() -> None:
    bias = {str(number): 1 for number in range(MAX_MEMBERS + 1)}
    error = refused(json.dumps({"input": "x", "logit_bias": bias}).encode())
    assert (error.code, error.param) == ("too_many_values", "logit_bias")


def test_commas_and_braces_in_a_text_count_as_text() -> None:
    text = '{[,"\\' * MAX_VALUES
    assert decode_json(json.dumps({"input": text}).encode()) == {"input": text}


@pytest.mark.parametrize(
    ("model", "document", "param"),
    [
        (ChatBody, {"messages": [{"role": "user", "content": "x"}] * (MAX_ITEMS + 1)}, "messages"),
        (CreateBody, {"input": [{"role": "user", "content": "x"}] * (MAX_ITEMS + 1)}, "input"),
        (
            CreateBody,
            {
                "input": [
                    {
                        "role": "user",
                        "content": [{"type": "input_text", "text": "x"}] * (MAX_ITEMS + 1),
                    }
                ]
            },
            "input[0].content",
        ),
        (CreateBody, {"input": "x", "stop": "y" * 1025}, "stop"),
    ],
)
def test_too_many_items_or_parts_are_refused_by_name(
    model: type[ChatBody | CreateBody], document: dict[str, Any], param: str
) -> None:
    with pytest.raises(ApiError) as refusal:
        parse(model, {"model": MODEL} | document)
    assert refusal.value.param == param


async def test_an_error_repeats_little_of_what_a_client_has_sent(world: World) -> None:
    async with httpx.AsyncClient(base_url=world.base_url, headers=world.headers()) as http:
        answer = await http.post("/v1/responses", json={"input": "x", "y" * 1_000_000: 1})
    assert answer.json()["error"]["code"] == "unknown_parameter"
    assert len(answer.content) < 4096


async def test_a_body_of_a_hundred_thousand_messages_is_refused_over_http(world: World) -> None:
    body = b'{"messages":[' + b",".join([b'{"role":"user","content":""}'] * 139_810) + b"]}"
    headers = {**world.headers(), "content-type": "application/json"}
    async with httpx.AsyncClient(base_url=world.base_url, headers=headers) as http:
        answer = await http.post("/v1/chat/completions", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "messages"
    assert not world.engine.requests
