"""Blocks: their words, numbers and what they refuse."""

import pytest

from t5x_lite.adapters.composition import (
    Average,
    BatchSplit,
    Block,
    Drop,
    Fuse,
    MultiTask,
    Parallel,
    Route,
    Split,
    Stack,
    check_answers,
    check_nesting,
    names_of,
    parallel_of,
    path_of,
    trained_of,
    walk,
)
from t5x_lite.core.errors import InputError

TREE = Stack(("en", Fuse(("sst2", Stack(("en", "nli"))))))


def test_words_and_names():
    assert str(TREE) == "Stack(en, Fuse(sst2, Stack(en, nli)))"
    assert names_of((TREE, "x")) == ("en", "sst2", "nli", "x")
    assert str(MultiTask(("a", None))) == "MultiTask(a, None)"
    assert str(Route(("a", None), kind="hard")) == "Route(a, None, kind='hard')"
    assert str(Drop(("a",), layers=(0, 2))) == "Drop(a, layers=(0, 2))"
    assert str(Split(("a", "b"), splits=(2, "rest"))) == "Split(a, b, splits=(2, 'rest'))"
    assert str(Average(("a",), normalize=True, weights=(2.0,))).endswith("normalize=True)")
    where = [path_of(above, str(node)) for node, above in walk(TREE) if node == "nli"]
    assert where == ["Stack > Fuse > Stack > nli"]


def test_numbers():
    """Weights are divided once: the library `adapters` divides a weighted sum by n again."""
    assert Average(("a", "b")).shares == (0.5, 0.5)
    assert Average(("a", "b"), weights=(2.0, 1.0)).shares == (2.0, 1.0)
    assert Average(("a", "b"), weights=(3.0, 1.0), normalize=True).shares == (0.75, 0.25)
    assert BatchSplit(("a", "b")).rows(6) == (3, 3)
    assert BatchSplit(("a", "b"), sizes=(1, 5)).rows(6) == (1, 5)
    assert Split(("a", "b"), splits=("rest", 2)).sizes(5) == (3, 2)
    assert Parallel(("a", "b", "c")).rows(6) == (2, 2, 2)
    assert parallel_of((Stack(("a", Parallel(("b", "c")))),)) == 2
    assert parallel_of((TREE,)) == 1
    assert list(trained_of((TREE,))["fusion"]) == ["sst2_en_nli"]
    named = (Fuse(("a", "b"), name="f"), Route(("a", None), name="f"))
    assert {part: list(blocks) for part, blocks in trained_of(named).items()} == {
        "fusion": ["f"],
        "router": ["f"],
    }
    assert [block.key for block in named] == ["fusion__f", "router__f"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Stack(()), "a composition block Stack must have children"),
        (lambda: Block((None,)), "Block does not support None"),
        (lambda: Average(("a", "b"), weights=(1.0,)), "one value for each of its 2 children"),
        (lambda: Average(("a", "b"), weights=(1.0, -1.0), normalize=True), "with a sum of 0"),
        (lambda: Fuse(("a",), temperature=0.0), "temperature must be above 0"),
        (lambda: Route(("a",), temperature=0.0), "temperature must be above 0"),
        (lambda: Drop(("a", "b"), layers=(0,)), "Drop block must have exactly one child, got 2"),
        (lambda: Drop(("a",)), "a Drop block requires the numbers of the layers"),
        (lambda: Drop(("a",), layers=(0, -1)), r"layers must be at least 0: got \(0, -1\)"),
        (lambda: Split(("a", "b")), "a Split block requires the number of tokens"),
        (lambda: Split(("a", "b"), splits=("rest", "rest")), "'rest' only once"),
        (lambda: Split(("a", "b"), splits=(0, 1)), "splits must be at least 1"),
        (lambda: Split(("a", "b"), splits=(1, 1)).sizes(3), "do not add up to the 3 tokens"),
        (lambda: BatchSplit(("a", "b"), sizes=(0, 1)), "sizes must be at least 1"),
        (lambda: BatchSplit(("a", "b")).rows(3), "a batch has 3 rows"),
        (
            lambda: Parallel(("a", "b")).rows(3),
            "a batch of 3 rows cannot be divided evenly among the children",
        ),
        (
            lambda: trained_of((Fuse(("a",), name="f"), Fuse(("b",), name="f"))),
            "two fusion blocks are called f",
        ),
        (
            lambda: check_nesting((Average((Stack((Parallel(("a", "b")),)), "c")),)),
            "only a Stack may contain it, got Average > Stack > Parallel",
        ),
        (
            lambda: check_nesting((Stack((Parallel(("a",)), Parallel(("b",)))),)),
            "only one Parallel block",
        ),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_who_answers_texts_has_no_blocks_of_rows():
    check_answers(("a", Average(("b", Stack(("c", "d"))))))
    for block in (
        MultiTask(("a", "b")),
        BatchSplit(("a", "b"), sizes=(1, 2)),
        Parallel(("a", "b")),
    ):
        with pytest.raises(
            InputError, match=rf"Stack > {type(block).__name__}\(a, b.*select one adapter"
        ):
            check_answers((Stack(("c", block)),))
