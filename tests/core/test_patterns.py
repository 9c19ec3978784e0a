"""Regular expressions from outside are matched in bounded time, with the results of `re`."""

import random
import re
import time

import pytest

from t5x_lite.core import trees
from t5x_lite.core.errors import InputError

NAME = "encoder.block.0.layer.0.SelfAttention.q." * 3 + "!"


@pytest.mark.parametrize(
    "pattern",
    [
        r"(.*)*x",
        r"(a|a)*b",
        r"(.+)+$x",
        r"(?=(.*)*x)",
        ".*" * 12 + "=",
        r"(?:(?:(?:(?:x?){99}){99}){99}){99}",
        r"((.{0,9999}){0,9999}){0,9999}z",
        r"(?:(?:){1000000}){1000000}",
        r"(?:a{65000}){65000}",
        r"(?:(?:(?:(?:(?:a?){30}){30}){30}){30}){30}z",
        "(" * 15 + "a?" + "){30}" * 15,
    ],
)
def test_an_expression_with_many_ways_ends(pattern):
    begin = time.process_time()  # a loaded machine does not count
    assert not trees.fullmatch(pattern, NAME)
    assert time.process_time() - begin < 5


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(", "not a regular expression"),
        ("a{99999999999999999999}", "not a regular expression"),
        ("(" * 5000 + ")" * 5000, "not a regular expression"),
        ("x" * 30_000, "at most 20,000 characters"),
        (r"(.*?)*\1", "groupref"),
        (r"(?>.*)*(.*)*", "atomic group"),
        (7, "must be a string"),
    ],
)
def test_what_is_not_supported_is_one_line(pattern, reason):
    with pytest.raises(InputError, match=reason) as error:
        trees.check("target_modules", pattern)
    assert str(error.value).startswith("target_modules: ")
    assert len(str(error.value)) < 300


def test_an_expression_that_takes_too_long_is_refused():
    with pytest.raises(InputError, match="takes too long"):
        trees.fullmatch("(.*.*.*.*)*" * 200 + "z", NAME)


def test_matches_that_take_too_long_together_are_refused(monkeypatch):
    monkeypatch.setattr(trees, "_ALL_STEPS", 0)
    assert not trees.fullmatch("(.*)*together", NAME)
    with pytest.raises(InputError, match="takes too long"):
        trees.fullmatch("(.*)*together", NAME[1:])  # results are cached


def test_groups_are_refused_where_they_could_take_for_ever():
    assert trees.groups(r"(.*)/(\w+)", "a/b/c").groups() == ("a/b", "c")
    with pytest.raises(InputError, match="repeats inside repeats"):
        trees.check_groups("init.rename", r"(?:(?:x+x+)+y|.*)")


def _random_pattern(rng, depth):
    kind = rng.randrange(8 if depth else 3)
    if kind < 2:
        return rng.choice(["a", "b", ".", "[ab]", "[^a]", r"\w", r"\b", "^", "$", r"\.", "A"])
    if kind == 2:
        return ""
    inner = _random_pattern(rng, depth - 1)
    if kind in (3, 4):
        return inner + _random_pattern(rng, depth - 1)
    if kind == 5:
        return f"(?:{inner}|{_random_pattern(rng, depth - 1)})"
    if kind == 6:
        return f"(?:{inner})" + rng.choice(["*", "+", "?", "{2}", "{1,3}", "*?", "{0,2}", "{3,}"])
    return f"({rng.choice(['?=', '?!', '?i:', '', ''])}{inner})"


@pytest.mark.parametrize("seed", range(3))
def test_positions_match_as_re_does(seed):
    rng = random.Random(seed)
    for _ in range(1000):
        pattern = _random_pattern(rng, 3)
        text = "".join(rng.choice("aAb.") for _ in range(rng.randrange(7)))
        parsed = trees._parsed(pattern)
        assert trees._Positions(parsed, text).reached() == bool(re.fullmatch(pattern, text))
