"""The pool: numbers, ids, and texts that have the same words."""

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.formats.pairs import Passage
from t5x_lite.retrieval.refresh_search import Pool, digest, same_words


def test_passages_by_number_and_id():
    pool = Pool.of(
        [Passage("f:1", "d7", "Emma", "Austen wrote it."), Passage("f:2", "d8", "", "x")]
    )
    assert (len(pool), pool.number("d8"), pool.number("d9"), pool.name(0)) == (2, 1, None, "d7")
    assert pool.text(0) == "Emma Austen wrote it."
    assert pool.digests(0) == {digest("emma AUSTEN wrote it"), digest("Austen wrote it")}
    assert pool.identity() != Pool.of([Passage("f:1", "d7", "", "Emma")]).identity()


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("A  cat, sat.", "a cat sat", True),
        ("ﬁne Straße", "FINE STRASSE", True),
        ("a cat", "a cat sat", False),
        ("!!", "??", False),
        ("C++", "C", True),
    ],
)
def test_texts_with_the_same_words(one, other, same):
    assert (same_words(one) == same_words(other)) == same
    assert (digest(one) == digest(other)) == same


def test_a_title_alone_is_no_duplicate_of_another_one():
    pool = Pool.of([Passage("f:1", "a", "Emma", ""), Passage("f:2", "b", "Persuasion", " ")])
    assert not pool.digests(0) & pool.digests(1)


def test_wrong_pools():
    with pytest.raises(InputError, match="f:2: two passages have the id 'a'"):
        Pool.of([Passage("f:1", "a", "", "x"), Passage("f:2", "a", "", "y")])
    with pytest.raises(InputError, match="no passage"):
        Pool.of([])
