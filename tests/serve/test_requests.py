import pytest

from t5x_lite.serve import batching
from t5x_lite.serve.batching import Refused


def test_an_object_with_known_fields():
    body = b'{"inputs": ["a", "\xc3\xa9"], "seed": 3}'
    assert batching.parse(body, fields={"inputs", "seed"}) == {"inputs": ["a", "é"], "seed": 3}


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "The body is not JSON: Expecting value at character 0."),
        (b"{", "The body is not JSON"),
        (b"\xff", "The body is not UTF-8 (byte 0)."),
        (b"[]", "The body must be a JSON object, got a list."),
        (b"null", "got null."),
        (b"7", "got a number."),
        (b"true", "got a truth value."),
        (b'{"a": NaN}', "an invalid or too large number, or is nested too deeply."),
        (b'{"a": 1e999}', "an invalid or too large number, or is nested too deeply."),
        (
            b'{"a": ' + b"9" * 9999 + b"}",
            "an invalid or too large number, or is nested too deeply.",
        ),
        (b"[" * 200_000, "an invalid or too large number, or is nested too deeply."),
        (b'{"input": "a"}', "unknown field 'input'; did you mean inputs?"),
        (b'{"x\\n": "a"}', r"unknown field 'x\n'; it may have inputs"),
    ],
)
def test_bodies_that_are_refused(body, sentence):
    with pytest.raises(Refused) as caught:
        batching.parse(body, fields={"inputs"})
    assert caught.value.status == 400
    assert sentence in str(caught.value)


def test_texts_are_one_or_several():
    assert batching.texts({"inputs": "a"}, "inputs", most=1) == ["a"]
    assert batching.texts({"inputs": ["a", ""]}, "inputs", most=2) == ["a", ""]


@pytest.mark.parametrize(
    ("record", "status", "sentence"),
    [
        ({}, 400, 'must have "inputs"'),
        ({"inputs": None}, 400, "got null"),
        ({"inputs": {}}, 400, "got an object"),
        ({"inputs": []}, 400, "at least one text"),
        ({"inputs": ["a", 1]}, 400, '"inputs"[1] must be a string, got a number.'),
        ({"inputs": ["\ud800"]}, 400, "surrogate"),
        ({"inputs": ["a"] * 3}, 413, "may have at most 2 texts, got 3"),
    ],
)
def test_texts_that_are_refused(record, status, sentence):
    with pytest.raises(Refused) as caught:
        batching.texts(record, "inputs", most=2)
    assert caught.value.status == status
    assert sentence in str(caught.value)


def test_optional_fields():
    record = {"seed": 5, "prompt": "query", "none": None}
    assert batching.optional_number(record, "seed", below=6) == 5
    assert batching.optional_number(record, "none", below=6) is None
    assert batching.optional_text(record, "prompt") == "query"
    assert batching.optional_text(record, "missing") is None


@pytest.mark.parametrize("value", [-1, 6, 1.0, True, "1"])
def test_numbers_that_are_refused(value):
    with pytest.raises(Refused, match="a whole number from 0 to 5"):
        batching.optional_number({"seed": value}, "seed", below=6)


@pytest.mark.parametrize("value", [1, ["a"], "\udfff"])
def test_optional_texts_that_are_refused(value):
    with pytest.raises(Refused, match="prompt"):
        batching.optional_text({"prompt": value}, "prompt")
