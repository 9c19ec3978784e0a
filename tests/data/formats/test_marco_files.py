"""Queries and judgements beside a collection."""

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.formats.retrieval_sets import marco_splits, read_marco_pairs

COLLECTION = "0\tpassage zero\n007\tpassage seven\n7\tanother seven\n"


@pytest.fixture
def write(tmp_path):
    def write(**files):
        (tmp_path / "collection.tsv").write_text(COLLECTION)
        for name, content in files.items():
            (tmp_path / f"{name.replace('__', '.')}.tsv").write_text(content)
        return str(tmp_path)

    return write


def pairs(directory, split="train"):
    return read_marco_pairs(directory, split, [f"{directory}/collection.tsv"])


def test_queries_with_their_passages(write):
    directory = write(
        queries__train="1\twhat is zero\n02\twhat is seven\n3\tunjudged\n",
        qrels__train="1\t0\t0\t1\n02\t0\t007\t1\n02\t0\t7\t1\n1\t0\t7\t0\n",
    )
    assert [(each.query, list(each.positives)) for each in pairs(directory)] == [
        ("what is zero", ["passage zero"]),
        ("what is seven", ["passage seven", "another seven"]),
    ]
    assert marco_splits(directory) == ("train",)
    with pytest.raises(InputError, match="has no queries of the split validation"):
        pairs(directory, "validation")


def test_judgements_of_two_columns_and_the_small_split(write):
    directory = write(queries__dev__small="1\tseven\n", qrels__dev__small="1 7\n\n")
    assert marco_splits(directory) == ("validation",)
    assert [list(each.positives) for each in pairs(directory, "validation")] == [["another seven"]]


def test_the_files_of_t2ranking(write):
    """Each has a first line of names; its qrels.retrieval.train.tsv is renamed."""
    directory = write(
        collection="pid\tpassage\n0\t东京是日本的首都\n1\t巴黎\n",
        queries__train="qid\tquery\n7\t日本的首都\n",
        qrels__train="qid\tpid\n7\t0\n",
    )
    [each] = pairs(directory)
    assert (each.query, list(each.positives)) == ("日本的首都", ["东京是日本的首都"])


@pytest.mark.parametrize(
    ("queries", "qrels", "message"),
    [
        (
            "1\ta\n",
            "1\t0\t0\t1\t1\n",
            r"qrels\.train\.tsv:1: a line must be query, 0, document, score",
        ),
        (
            "1\n",
            "1\t0\t0\t1\n",
            r"queries\.train\.tsv:1: must have 2 fields, query id TAB text, got 1",
        ),
        ("1\ta\n", "2\t0\t0\t1\n", r"qrels\.train\.tsv:1: the query '2' is not in"),
        ("1\ta\n", "1\t0\t0\tx\n", r"qrels\.train\.tsv:1: a score must be a whole number"),
        ("1\ta\n", "1\t0\t9\t1\n", r"the passage collection lacks 1 judged passages, .* '9'"),
    ],
)
def test_what_is_wrong_is_named(write, queries, qrels, message):
    with pytest.raises(InputError, match=message):
        pairs(write(queries__train=queries, qrels__train=qrels))


def test_a_directory_without_queries_is_refused(tmp_path):
    for directory in ("", str(tmp_path)):
        with pytest.raises(InputError, match=r"has no queries\.train\.tsv with a qrels\.train"):
            marco_splits(directory)


@pytest.mark.parametrize("names", ["qid\tquery", "query_id\ttext", '"id"\t"question"'])
@pytest.mark.parametrize("judged", ["query-id\tcorpus-id\tscore", "qid\t0\tpid\tlabel", None])
def test_first_lines_of_names_are_no_queries_and_no_judgments(write, names, judged):
    line = "1\t0\t7\t1\n" if judged is None or "0" in judged else "1\t7\t1\n"
    directory = write(
        queries__train=f"{names}\n1\tseven\n",
        qrels__train=("" if judged is None else f"{judged}\n") + line,
    )
    (found,) = pairs(directory)
    assert (found.query, list(found.positives)) == ("seven", ["another seven"])


def test_columns_of_queries_may_be_named_in_any_order(write):
    directory = write(queries__train="query\tqid\nseven\t1\n", qrels__train="1 7\n")
    assert [each.query for each in pairs(directory)] == ["seven"]


def test_a_text_without_names_may_have_tabs(write):
    directory = write(queries__train="1\tseven\tup\n", qrels__train="1 7\n")
    assert [each.query for each in pairs(directory)] == ["seven\tup"]
