import numpy as np
import pytest

from t5x_lite.adapters.delta import Delta
from t5x_lite.adapters.delta_merging import Dare, Fisher, Ties, merge
from t5x_lite.adapters.delta_parts import Dense, LowRank, Scale
from t5x_lite.adapters.grammar import Names, check, evaluate, names_in
from t5x_lite.core.errors import InputError

RNG = np.random.default_rng(0)
PATH = "model/wi/kernel"


def low():
    factors = (RNG.standard_normal(s).astype(np.float32) for s in ((4, 2), (2, 3)))
    return Delta({PATH: LowRank(*factors)})


A, B, C = low(), low(), low()
IA3 = Delta({PATH: Scale(np.ones(3, np.float32))})
FISHER = {PATH: np.square(RNG.standard_normal((4, 3)))}
NAMES = Names(
    {"a": A, "b": B, "c": C, "ia3": IA3},
    {"a": FISHER, "b": FISHER},
    lambda name: Delta({PATH: Dense(np.full((4, 3), len(name), np.float32))}),
)


def value(delta):
    return delta.parts[PATH].dense()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", value(A)),
        ("-a + 2 * b / 4", value(B) / 2 - value(A)),
        ("0.5 * (a - c)", (value(A) - value(C)) / 2),
        ("linear(a, b, weights=[1, -0.5])", value(A) - value(B) / 2),
        ("average(a, b, c)", (value(A) + value(B) + value(C)) / 3),
        ("ties(a, b, density=0.2) - 0.5 * c", value(merge([A, B], Ties())) - value(C) / 2),
        ("ties(a, b, scale=2, density=1)", value(merge([A, B], Ties(density=1.0, scale=2.0)))),
        ("dare(a, b, p=0.5, seed=7)", value(merge([A, B], Dare(p=0.5, seed=7)))),
        ("fisher(a, b)", value(merge([A, B], Fisher([FISHER, FISHER])))),
        ("sparsify(a, k=3)", value(A.sparsify(k=3))),
        ("sparsify(a + b, density=1/4)", value((A + B).sparsify(density=0.25))),
        ("factor(a + b, rank=1)", value((A + B).factor(1))),
        ("svd(a, b, rank=1)", value((A + B).factor(1))),
        ("materialize(ia3)", 3.0),
        ("materialise(ia3)", 3.0),
        ("without_heads(a)", value(A)),
    ],
)  # fmt: skip
def test_what_an_expression_is(text, expected):
    np.testing.assert_allclose(value(evaluate(text, NAMES)), expected, atol=1e-5)


def test_names_come_in_their_order():
    assert names_in("ties(b, a) - 0.5 * c + b") == ("b", "a", "c")


@pytest.mark.parametrize(
    ("text", "column", "reason"),
    [
        ("ties(a, b", 5, "was never closed"),
        ("a + ", 4, "invalid syntax"),
        (" a + * b", 5, "invalid syntax"),
        ("tie(a, b)", 1, "unknown function tie; did you mean ties?"),
        ("a + frobnicate(b)", 5, "unknown function frobnicate; functions are linear"),
        ("a - d", 5, "unknown delta d; name a delta with --delta d=DIR"),
        ("a + ia33", 5, "unknown delta ia33; did you mean ia3?"),
        ("ties(a, b, densty=0.2)", 12, "ties has no option densty; did you mean density?"),
        ("ties(a, density=0)", 1, "density must be in (0, 1]"),
        ("ties(a, weights=2)", 17, "weights must be a list of numbers"),
        ("ties(a, b, weights=[1, -1])", 1, "must not be negative"),
        ("svd(a, b)", 1, "svd needs the option rank="),
        ("svd(a, rank=1.5)", 13, "rank must be an integer, got 1.5"),
        ("factor(a, b, rank=1)", 1, "factor takes one delta, got 2"),
        ("linear()", 1, "linear takes at least one delta, got 0"),
        ("linear(a, 2)", 11, "linear takes deltas"),
        ("a * b", 1, "multiplied or divided by numbers"),
        ("a + 1", 1, "deltas can be added"),
        ("a / 0", 5, "division by 0"),
        ("a ** 2", 1, "added and subtracted"),
        ("'a'", 1, "only names, numbers"),
        ("a.b", 1, "only names, numbers"),
        ("__import__('os')", 1, "unknown function __import__"),
        ("a if a else b", 1, "only names, numbers"),
        ("a + 2 * ia3", 5, "Scale instead of a difference"),
        ("fisher(a, c)", 11, "--fisher c=DIR"),
        ("fisher(a + b)", 8, "needs the Fisher diagonal of each delta"),
        ("materialise(a + b)", 13, "takes the name of a delta"),
        ("sparsify(a)", 1, "exactly one of k"),
        ("é + a", 1, "unknown delta é"),
    ],
)
def test_errors_point_at_the_column(text, column, reason):
    with pytest.raises(InputError) as caught:
        evaluate(text, NAMES)
    assert f"column {column}: " in str(caught.value)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "column"), [("1e38 * a", 1), ("a * (1e30 * 1e30)", 6), (f"a / {10**39}", 5)]
)
def test_numbers_that_float32_may_not_hold(text, column):
    with pytest.raises(InputError, match=rf"column {column}: numbers must be below 1e\+38"):
        evaluate(text, NAMES)


def test_what_is_no_delta_at_all():
    with pytest.raises(InputError, match="'1 / 2' must compute a delta, but its value is a number"):
        evaluate("1 / 2", NAMES)
    with pytest.raises(InputError, match="the maximum is 10000"):
        evaluate("a" * 10_001, NAMES)
    for deep in ("(" * 300 + "a" + ")" * 300, "-" * 5000 + "a"):
        with pytest.raises(InputError):
            evaluate(deep, NAMES)
    with pytest.raises(InputError, match="column 3: unknown function ties2"):
        check("a-ties2(b)", ["a", "b"])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("text", ["1if a else b", "0.5(a)", "a is 1", "'\\w' + a"])
def test_python_s_warnings_are_not_shown(text):
    with pytest.raises(InputError):
        evaluate(text, Names(deltas={}))


def test_a_long_expression_is_repeated_in_part():
    with pytest.raises(InputError) as error:
        check(" + ".join(["a"] * 2000) + " + b" * 10 + "x" * 500, ["a"])
    assert len(str(error.value)) < 300
