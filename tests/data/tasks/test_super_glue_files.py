import json

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.tasks.glue_files import (
    RECORD_TEXTS,
    WSC_TEXTS,
    SuperGlueTask,
    multirc_records,
    record_records,
    wsc_records,
)

BOOLQ = SuperGlueTask(
    name="boolq", directory="BoolQ", template="passage: {passage} question: {question}"
)


@pytest.fixture
def read(tmp_path):
    """A function: (reader, split, objects) -> records."""

    def records(reader, split, *objects):
        file = tmp_path / "rows.jsonl"
        file.write_text("".join(json.dumps(record) + "\n" for record in objects))
        return list(reader(file, split))

    return records


def test_records_have_the_features_of_tfds(read):
    line = {"question": "is it", "passage": "It is.", "idx": 4, "label": True, "version": 1.1}
    assert read(BOOLQ.records, "train", line) == [
        {"question": "is it", "passage": "It is.", "label": 1, "idx": 4}
    ]
    del line["label"]
    assert read(BOOLQ.records, "test", line)[0]["label"] == -1


def test_labels_are_words_numbers_or_truth_values(read):
    copa = SuperGlueTask(
        name="copa",
        directory="COPA",
        template="premise: {premise}",
        labels=("choice1", "choice2"),
        entries=("0", "1"),
    )
    (record,) = read(copa.records, "train", {"premise": "It rained.", "label": 1, "idx": 0})
    assert copa.example(record)["targets"] == "choice2"
    cb = SuperGlueTask(
        name="cb", directory="CB", template="premise: {premise}", labels=("no", "maybe", "yes")
    )
    (record,) = read(cb.records, "train", {"premise": "It rained.", "label": "yes", "idx": 0})
    assert cb.example(record) == {"inputs": "cb premise: It rained.", "targets": "yes", "idx": 0}


def test_columns_of_the_files_and_of_tfds_become_fields(read):
    axb = SuperGlueTask(
        name="axb",
        directory="AX-b",
        prefix="rte",
        template="hypothesis: {hypothesis} premise: {premise}",
        labels=("entailment", "not_entailment"),
        columns={"hypothesis": "sentence2", "premise": "sentence1"},
    )
    line = {"sentence1": "P", "sentence2": "H", "label": "entailment", "idx": 0, "logic": ""}
    (record,) = read(axb.records, "test", line)
    expected = {"inputs": "rte hypothesis: H premise: P", "targets": "entailment", "idx": 0}
    assert axb.example(record) == expected
    assert axb.example({"sentence1": "P", "sentence2": "H", "label": 0, "idx": 0}) == expected


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"question": "?", "idx": 1, "label": True}, 'rows.jsonl:2: must have "passage", a string'),
        (
            {"question": "?", "passage": ".", "idx": 1, "label": "maybe"},
            "rows.jsonl:2: column label is 'maybe', but must be one of False, True",
        ),
        ({"question": "?", "passage": ".", "idx": 1}, "rows.jsonl:2: the column label is missing"),
        (
            {"question": "?", "passage": ".", "idx": 0, "label": False},
            "rows.jsonl:2: idx 0 occurs twice, first in",
        ),
        (
            {"question": "?", "passage": ".", "idx": -1, "label": False},
            'rows.jsonl:2: "idx" must be a whole number',
        ),
    ],
)
def test_a_bad_line_is_named(read, second, message):
    first = {"question": "is it", "passage": "It is.", "idx": 0, "label": True}
    with pytest.raises(InputError) as caught:
        read(BOOLQ.records, "train", first, second)
    assert message in str(caught.value)


def test_a_number_may_be_a_string(read):
    line = {"question": "is it", "passage": "It is.", "label": True}
    records = read(BOOLQ.records, "train", line | {"idx": "0"}, line | {"idx": 1})
    assert [record["idx"] for record in records] == [0, 1]
    with pytest.raises(InputError, match=r'rows\.jsonl:1: "idx" must be a whole number .*"0x"'):
        read(BOOLQ.records, "train", line | {"idx": "0x"})
    assert [r["idx"]["answer"] for r in read(multirc_records, "test", multirc_line(idx="22"))] == [
        21, 22,
    ]  # fmt: skip


def multirc_line(**answer):
    question = {
        "question": "Who?",
        "idx": 7,
        "answers": [{"text": "Ann", "idx": 21, "label": 1}, {"text": "Bob", "idx": 22, **answer}],
    }
    return {"idx": 3, "passage": {"text": "Ann left.", "questions": [question]}}


def test_multirc_is_a_record_for_each_answer(read):
    first, second = read(multirc_records, "train", multirc_line(label=0))
    assert first == {
        "paragraph": "Ann left.",
        "question": "Who?",
        "answer": "Ann",
        "label": 1,
        "idx": {"paragraph": 3, "question": 7, "answer": 21},
    }
    assert (second["answer"], second["label"]) == ("Bob", 0)
    assert read(multirc_records, "test", multirc_line())[1]["label"] == -1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (multirc_line(), "rows.jsonl:1: the column label is missing"),
        (
            multirc_line(label=2),
            "rows.jsonl:1: column label is '2', but must be one of False, True",
        ),
        (multirc_line(label=0, idx=21), "rows.jsonl:1: two answers have the idx 21"),
        ({"idx": 3}, 'rows.jsonl:1: must have "passage", an object'),
        (
            {"idx": 3, "passage": {"text": "", "questions": [1]}},
            'rows.jsonl:1: must have "questions", a list of objects',
        ),
    ],
)
def test_a_bad_line_of_multirc_is_named(read, line, message):
    with pytest.raises(InputError) as caught:
        read(multirc_records, "train", line)
    assert message in str(caught.value)


def record_line(*entities, answers=("Bob", "Ann", "Bob")):
    query = {"query": "@placeholder left", "idx": 9}
    if answers is not None:
        query["answers"] = [{"text": text, "start": 0, "end": 2} for text in answers]
    passage = {
        "text": "Bob saw Ann and Bob.",
        "entities": [{"start": start, "end": end} for start, end in entities],
    }
    return {"idx": 5, "source": "x", "passage": passage, "qas": [query]}


def test_record_entities_and_answers_are_sorted_and_each_once(read):
    (record,) = read(record_records, "train", record_line((16, 18), (8, 10), (0, 2)))
    assert record == {
        "passage": "Bob saw Ann and Bob.",
        "query": "@placeholder left",
        "entities": ["Ann", "Bob"],
        "answers": ["Ann", "Bob"],
        "idx": {"passage": 5, "query": 9},
    }
    (record,) = read(record_records, "test", record_line((0, 2), answers=None))
    assert record["answers"] == []


def test_a_bad_line_of_record_is_named(read):
    with pytest.raises(
        InputError, match="1: an entity from character 18 to 40 is not within the passage"
    ):
        read(record_records, "train", record_line((18, 40)))
    with pytest.raises(InputError, match="1: a query has no answers; only a test split may"):
        read(record_records, "train", record_line((0, 2), answers=None))


def test_a_line_of_record_without_a_choice_or_a_question_is_named(read):
    with pytest.raises(InputError, match=r"rows\.jsonl:2: the passage has no entities to choose"):
        read(record_records, "train", record_line((0, 2)), record_line() | {"idx": 6})
    line = record_line((0, 2))
    line["qas"][0]["query"] = "who left"
    with pytest.raises(InputError, match=r"rows\.jsonl:1: a query has no @placeholder"):
        read(record_records, "train", line)
    del line["passage"]["entities"]
    with pytest.raises(InputError, match=r'rows\.jsonl:1: must have "entities", a list of objects'):
        read(record_records, "train", line)


def wsc_line(**target):
    spans = {"span1_text": "Tom", "span1_index": 2, "span2_text": "he", "span2_index": 4}
    text = "Mitchell asked Tom if he could go . Then the Dog left"
    return {"text": text, "target": {**spans, **target}, "label": True, "idx": 0}


def test_wsc_spans(read):
    (record,) = read(wsc_records, "train", wsc_line())
    assert record == {
        "text": "Mitchell asked Tom if he could go . Then the Dog left",
        "span1_text": "Tom",
        "span1_index": 2,
        "span2_text": "he",
        "span2_index": 4,
        "label": 1,
        "idx": 0,
    }


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ({"span1_text": "The Dog", "span1_index": 9}, "the Dog"),
        ({"span1_text": "tom.", "span1_index": 2}, "Tom"),
        ({"span1_text": "the\nDog", "span1_index": 9}, "the Dog"),
        ({"span1_text": "Kamenev and Zinoviev"}, "Kamenev and Zinoviev"),
    ],
)
def test_wsc_spans_are_repaired(read, target, expected):
    (record,) = read(wsc_records, "train", wsc_line(**target))
    assert record["span1_text"] == expected


def test_a_bad_span_of_wsc_is_named(read):
    with pytest.raises(
        InputError, match=r"rows\.jsonl:1: field span1_text is 'Ann', which is not in the text"
    ):
        read(wsc_records, "train", wsc_line(span1_text="Ann"))
    with pytest.raises(
        InputError,
        match=r"rows\.jsonl:1: field span1_index must be the index of a word in the text, got 99",
    ):
        read(wsc_records, "train", wsc_line(span1_text="ann", span1_index=99))
    with pytest.raises(InputError, match=r"rows\.jsonl:1: WSC 0: word 99 of .* is not the pronoun"):
        read(wsc_records, "train", wsc_line(span2_index=99))
    with pytest.raises(InputError, match=r"rows\.jsonl:1: WSC 0: word 4 of .* pronoun ''"):
        read(wsc_records, "train", wsc_line(span2_text=""))
    with pytest.raises(InputError, match=r'rows\.jsonl:1: must have "span2_text", a string'):
        read(wsc_records, "train", wsc_line(span2_text=None))


@pytest.mark.parametrize("label", [1, 0])
def test_wsc_is_a_text_with_its_pronoun_marked_and_a_noun(read, label):
    (record,) = read(wsc_records, "train", wsc_line() | {"label": bool(label)})
    assert WSC_TEXTS.example(record, {}) == {
        "inputs": "Mitchell asked Tom if *he* could go . Then the Dog left",
        "second": "Tom",
        "targets": ("False", "True")[label],
        "label": label + 1,
        "label_end": 0,
        "idx": 0,
    }


def test_record_is_a_passage_with_a_query_and_its_candidates(read):
    line = record_line((16, 18), (8, 10))
    line["passage"]["text"] = "Bob saw Ann and Bob.\n@highlight\nShe left"
    (record,) = read(record_records, "train", line)
    assert RECORD_TEXTS.example(record, {}) == {
        "inputs": "Bob saw Ann and Bob. She left",
        "second": "@placeholder left",
        "targets": "<unk>",
        "label": 0,
        "label_end": 0,
        "idx/passage": 5,
        "idx/query": 9,
        "question": "Bob saw Ann and Bob. She left @placeholder left",
        "candidates": ["Ann", "Bob"],
        "answers": ["Ann", "Bob"],
    }
