"""Lines of settings of single tasks."""

import pytest

from t5x_lite.config.evaluation import Line, parse_line
from t5x_lite.core.errors import InputError


def test_a_line():
    found = parse_line("wmt_*: num_beams=4, length_penalty=1, max_examples=None, rank=False")
    assert found == Line(
        "wmt_*",
        {"num_beams": 4, "length_penalty": 1.0, "max_examples": None, "rank": False},
    )
    assert type(found.values["length_penalty"]) is float
    assert parse_line(" tasks.wmt:ende :inputs_length=64").pattern == "tasks.wmt:ende"


def test_patterns():
    names = ("wmt_ende", "tasks.wmt:ende", "tasks.wmt", "ende")
    for pattern in ("wmt_ende", "wmt_*", "ende", "tasks.wmt", "tasks.*", "en??"):
        assert Line(pattern, {}).matches(names), pattern
    for pattern in ("wmt", "enfr", "WMT_*"):
        assert not Line(pattern, {}).matches(names), pattern


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("num_beams=4", "must be PATTERN: SETTING=VALUE, ..., such as 'wmt_"),
        (": num_beams=4", "must be PATTERN"),
        ("a:", "expected SETTING=VALUE, ..., got ''"),
        ("a: 4", "expected SETTING=VALUE, ..., got '4'"),
        ("a: num_beams=", "expected SETTING=VALUE"),
        ("a: num_beam=4", "'a' has no setting num_beam; did you mean num_beams[?]; the settings"),
        ("a: **{}", "has no setting None"),
        ("a: num_beams=4, num_beams=4", "expected SETTING=VALUE|given twice"),
        ("a: num_beams=4.5", "num_beams must be a whole number, got 4.5"),
        ("a: num_beams=True", "num_beams must be a whole number, got True"),
        ("a: rank=1", "rank must be True or False, got 1"),
        ("a: length_penalty=high", "length_penalty must be a number or None, got high"),
        ("a: max_examples='x'", "max_examples must be a whole number or None, got 'x'"),
        ("a: examples_of=glue", "examples_of must be a string, got glue"),
        ("a: inputs_length=0", "inputs_length must be at least 1, got 0"),
    ],
)
def test_what_is_no_line(text, message):
    with pytest.raises(InputError, match=message):
        parse_line(text)
