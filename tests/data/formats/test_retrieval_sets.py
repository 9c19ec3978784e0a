import json
import logging

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.formats import retrieval_sets
from t5x_lite.data.formats.pairs import Pairs
from t5x_lite.data.formats.retrieval_sets import Judged

DOCUMENTS = [
    {"_id": "a", "title": "Emma", "text": "A novel."},
    {"_id": "b", "title": "", "text": "A film."},
    {"_id": "c", "text": "No title."},
    {"_id": "d", "title": "Not judged", "text": "At all."},
]
QUERIES = [{"_id": "1", "text": "who is Emma"}, {"_id": "2", "text": "what is c"}]
TRAIN = "query-id\tcorpus-id\tscore\n1\tb\t0\n1\ta\t2\n2\tc\t1\n1\tc\t1\n"


def pairs(query, answers, others):
    texts = [[*answers.values()], [*others.values()]]
    return Pairs(query, *texts, positive_ids=[*answers], negative_ids=[*others])


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "qrels").mkdir()
    for name, records in (("corpus", DOCUMENTS), ("queries", QUERIES)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, records)))
    (tmp_path / "qrels" / "train.tsv").write_text(TRAIN)
    (tmp_path / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\n2\tb\t0\n2\tc\t1\n")
    return tmp_path


def test_queries_with_what_answers_them_and_what_does_not(directory):
    assert retrieval_sets.beir_splits(str(directory)) == ("train", "validation")
    assert retrieval_sets.read_beir_pairs(str(directory), "train") == [
        pairs("who is Emma", {"a": "Emma A novel.", "c": "No title."}, {"b": "A film."}),
        pairs("what is c", {"c": "No title."}, {}),
    ]
    assert retrieval_sets.read_beir_pairs(str(directory), "validation") == [
        pairs("what is c", {"c": "No title."}, {"b": "A film."})
    ]


def test_a_query_that_nothing_answers_is_passed_over(directory):
    (directory / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n2\tb\t0\n")
    assert retrieval_sets.read_beir_pairs(str(directory), "test") == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "1\ta",
            r"train.tsv:6: a line must be query, 0, document, score .TREC., query, document, score",
        ),
        ("1\ta\tyes", r"train.tsv:6: a score must be a whole number, got 'yes'"),
        ("3\ta\t1", r"train.tsv has judgments of query '3', but queries.jsonl has no such"),
    ],
)
def test_wrong_judgements_are_named(directory, line, message):
    (directory / "qrels" / "train.tsv").write_text(f"{TRAIN}{line}\n")
    with pytest.raises(InputError, match=message):
        retrieval_sets.read_beir_pairs(str(directory), "train")


def test_answers_that_the_corpus_lacks_are_left_out(directory, caplog):
    (directory / "qrels" / "train.tsv").write_text(f"{TRAIN}1\tz\t1\n1\ty\t0\n2\tz\t1\n")
    with caplog.at_level(logging.WARNING):
        found = retrieval_sets.read_beir_pairs(str(directory), "train")
    assert found == [
        pairs("who is Emma", {"a": "Emma A novel.", "c": "No title."}, {"b": "A film."}),
        pairs("what is c", {"c": "No title."}, {}),
    ]
    [message] = caplog.messages
    assert message.endswith("skipping 2 judged documents that corpus.jsonl lacks")
    (directory / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\n1\tz\t1\n2\tc\t1\n")
    assert retrieval_sets.read_beir_pairs(str(directory), "train") == [
        pairs("what is c", {"c": "No title."}, {})
    ]


def test_a_directory_that_is_none_of_beir_is_refused(tmp_path):
    for directory in ("", str(tmp_path)):
        with pytest.raises(InputError, match="is not a BEIR directory: it must contain corpus"):
            retrieval_sets.beir_splits(directory)
    with pytest.raises(InputError, match=r"train.tsv: No such file"):
        retrieval_sets.read_beir_pairs(str(tmp_path), "train")


# What a ranking is measured by.


def test_judgements_with_their_queries(directory):
    judged = retrieval_sets.read_judged(str(directory), "validation")
    assert judged == Judged({"2": "what is c"}, {"2": {"b": 0, "c": 1}})
    corpus = list(retrieval_sets.read_corpus(str(directory)))
    assert [(one.id, one.text) for one in corpus[:2]] == [("a", "Emma A novel."), ("b", "A film.")]


@pytest.mark.parametrize(
    ("document", "same"),
    [
        ({"text": "what is c"}, True),
        ({"title": "On c", "text": " what  is c"}, True),
        ({"title": "what is", "text": "c"}, True),
        ({"title": "what is c", "text": "a letter"}, False),
        ({"text": "What is c"}, False),
    ],
)
def test_queries_that_are_documents(directory, document, same):
    with open(directory / "corpus.jsonl", "a") as file:
        file.write("\n" + json.dumps({"_id": "2", **document}))
        file.write('\n{"_id": "3", "text": "not judged"}\n{"_id": "1", "text": "other"}\n')
    judged = retrieval_sets.read_judged(str(directory), "train")
    assert judged.twins == ({"2"} if same else set())
    assert judged.namesakes == 2 - same


def test_judged_documents_that_the_corpus_lacks_stay(directory):
    with open(directory / "qrels" / "dev.tsv", "a") as file:
        file.write("2\tz\t1\n1\ty\t0\n1\tz\t1\n")
    judged = retrieval_sets.read_judged(str(directory), "validation")
    assert judged.judgements == {"2": {"b": 0, "c": 1, "z": 1}, "1": {"y": 0, "z": 1}}
    assert judged.missing == 2


def test_a_corpus_without_any_judged_document_is_refused(directory):
    (directory / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\n2\tz\t1\n2\ty\t0\n")
    message = r"dev\.tsv: corpus\.jsonl has none of the 2 judged documents, such as 'y'"
    for read in (retrieval_sets.read_judged, retrieval_sets.read_beir_pairs):
        with pytest.raises(InputError, match=message):
            read(str(directory), "validation")


@pytest.mark.parametrize(
    ("name", "added", "message"),
    [
        (
            "qrels/dev.tsv",
            "9\tc\t1\n",
            r"dev\.tsv has judgments of query '9', but queries\.jsonl",
        ),
        (
            "corpus.jsonl",
            '\n{"_id": "c", "text": ""}',
            r"jsonl:5: the document id 'c' occurs twice, first in .*:3",
        ),
        ("corpus.jsonl", "\n{", r"corpus\.jsonl:5: not JSON"),
    ],
)
def test_judgements_of_what_is_not_there(directory, name, added, message):
    with open(directory / name, "a") as file:
        file.write(added)
    with pytest.raises(InputError, match=message):
        retrieval_sets.read_judged(str(directory), "validation")


def test_files_that_hold_nothing(directory):
    (directory / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\n")
    with pytest.raises(
        InputError, match=r"dev\.tsv has no relevance judgment; it needs lines of query-id"
    ):
        retrieval_sets.read_judged(str(directory), "validation")
    (directory / "corpus.jsonl").write_text("")
    with pytest.raises(InputError, match=r"corpus\.jsonl has no document"):
        retrieval_sets.read_judged(str(directory), "train")
