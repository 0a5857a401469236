"""One object that Python's parser chokes on must not hide the others of a list."""

import json

import pytest
from sandbox_api.kube.decoding import MAX_DEPTH, TolerantDecoder, decode_json


def nested(levels: int, innermost: str = "1") -> str:
    return '{"f:a":' * levels + innermost + "}" * levels


def depth(value: object) -> int:
    levels = 0
    while isinstance(value, dict):
        value = value["f:a"]
        levels += 1
    assert value is None
    return levels


@pytest.mark.parametrize("levels", [3000, 9990])
def test_what_nests_too_deep_becomes_null_and_its_neighbours_stay(levels: int) -> None:
    text = f'{{"items": [{{"fields": {nested(levels)}, "a": "\\"}}{{[ \\\\"}}, {{"b": [1, {{}}, []]}}]}}'
    first, second = decode_json(text.encode())["items"]
    assert depth(first["fields"]) == MAX_DEPTH - 3
    assert first["a"] == '"}{[ \\'
    assert second == {"b": [1, {}, []]}


def test_lists_that_nest_too_deep_become_null() -> None:
    value = decode_json(b"[" * 5000 + b"]" * 5000)
    for _ in range(MAX_DEPTH - 1):
        (value,) = value
    assert value == [None]


def test_bytes_that_are_no_utf8_are_replaced() -> None:
    assert decode_json(b'{"f:\xff": "\xc3\xa4"}') == {"f:\ufffd": "ä"}


def test_what_is_no_json_is_an_error() -> None:
    for text in (b"", b"<html>", b'{"a":' * 5000):
        with pytest.raises(ValueError, match=r"Expecting|line"):
            decode_json(text)


def test_the_standard_module_can_be_given_the_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json, "_default_decoder", TolerantDecoder())
    assert depth(json.loads(nested(3000))) == MAX_DEPTH
