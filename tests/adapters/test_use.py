"""Lines of `adapters.use` to trees and back."""

import pytest

from t5x_lite.adapters.composition import Average, BatchSplit, Fuse, MultiTask, Split, Stack
from t5x_lite.adapters.grammar import parse_trees, parse_use, write_trees
from t5x_lite.core.errors import InputError

LINES = {
    "rte": ("rte",),
    "rte, mrpc": ("rte", "mrpc"),
    "Stack(en, Fuse(sst2, nli))": (Stack(("en", Fuse(("sst2", "nli")))),),
    "Average(a, b, weights=(1, 2), normalize=True)": (
        Average(("a", "b"), weights=(1.0, 2.0), normalize=True),
    ),
    "MultiTask(a, None), c": (MultiTask(("a", None)), "c"),
    "BatchSplit(a, Stack(b, c), sizes=[1, 2])": (
        BatchSplit(("a", Stack(("b", "c"))), sizes=(1, 2)),
    ),
    "Split(a, b, splits=(3, 'rest'))": (Split(("a", "b"), splits=(3, "rest")),),
    "Fuse(a, b, name='f', temperature=2, static=True)": (
        Fuse(("a", "b"), name="f", temperature=2.0, static=True),
    ),
}


@pytest.mark.parametrize("line", LINES)
def test_a_line_is_trees_and_back(line):
    trees = parse_trees(line)
    assert trees == LINES[line]
    assert parse_trees(write_trees(trees)) == trees


def test_names():
    assert parse_trees(" ") == ()
    assert parse_use("rte, mrpc") == ("rte", "mrpc")
    assert parse_use("Stack(a, Stack(b, a)), c") == ("a", "b", "c")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a + b", "column 1 of .*: a union of methods, a [+] b,"),
        ("a, b, a", "column 7 of .*: adapter or block 'a' is named twice"),
        ("a,, b", "column 3 .*: invalid syntax"),
        ("a = b", "expected adapter names"),
        ("a, 3", "column 4 of .*: expected adapter names"),
        ("Stack(a, 3)", "column 10 of .*: expected adapter names"),
        ("Stak(a, b)", "column 1 of .*: unknown block Stak; did you mean Stack"),
        ("Stack(a, Fuse(b, lora(c)))", "column 18 of .*: unknown block lora"),
        ("Stack(a, Average)", "column 10 of .*: block Average needs children in brackets"),
        ("Stack(a, None)", "column 1 of .*: block Stack does not support None"),
        ("None", "None .the model without an adapter. is only allowed in a block"),
        ("Stack(a, b, n=1)", "column 13 of .*: block Stack has no option n; it takes no options"),
        ("Average(a, b, weight=(1, 2))", "no option weight; did you mean weights"),
        ("Average(a, b, weights='x')", "weights must be a tuple of a finite number: got 'x'"),
        (
            "Average(a, b, weights=(1,))",
            "column 1 of .*: option weights of a composition block must",
        ),
        ("Average(Parallel(a, b), c)", "column 1 of .*, so only a Stack may contain it"),
    ],
)
def test_a_line_that_is_wrong(text, message):
    with pytest.raises(InputError, match=message) as raised:
        parse_trees(text)
    assert "\n" not in str(raised.value)
