"""Questions with candidates: their rows, and the questions again."""

import dataclasses
import json

import numpy as np
import pytest

from t5x_lite import layouts
from t5x_lite.core.errors import InputError
from t5x_lite.data import postprocess
from t5x_lite.data.config import Data
from t5x_lite.data.tasks.questions import CandidateText, questions

LINES = [
    {
        "idx": 3,
        "passage": {
            "text": "Una saw a dog\n@highlight\nA hen ran",
            "entities": [
                {"start": 0, "end": 2},
                {"start": 10, "end": 12},
                {"start": 27, "end": 29},
                {"start": 10, "end": 12},
            ],
        },
        "qas": [
            {"query": "the @placeholder ran", "idx": 8, "answers": [{"text": "hen"}]},
            {"query": "dogs @placeholder", "idx": 9, "answers": [{"text": "dog"}, {"text": "Una"}]},
        ],
    },
    {
        "idx": 4,
        "passage": {"text": "a dog", "entities": [{"start": 2, "end": 4}]},
        "qas": [{"query": "@placeholder", "idx": 7, "answers": [{"text": "dog"}]}],
    },
]


@pytest.fixture
def data(tmp_path):
    root = tmp_path / "ReCoRD"
    root.mkdir()
    for split in ("train", "val"):
        (root / f"{split}.jsonl").write_text("\n".join(map(json.dumps, LINES)))
    unknown = json.loads(json.dumps(LINES))
    for line in unknown:
        for query in line["qas"]:
            del query["answers"]
    (root / "test.jsonl").write_text("\n".join(map(json.dumps, unknown)))
    return Data(
        task="tasks.super_glue:record",
        vocabulary="",
        directory=str(tmp_path),
        layout=layouts.Labelled(),
        batch_size=7,
        inputs_length=14,
        pack=False,
        shuffle=False,
    )


def spelled(vocabulary, ids):
    pieces = vocabulary.pieces()
    return " ".join(pieces[i] for i in ids if i != vocabulary.pad_id).replace(" ##", "")


def test_a_row_for_each_candidate_in_the_order_of_their_names(data, vocabulary):
    from t5x_lite.data import batches as data_batches

    (batch,) = data_batches.eval_batches(data, vocabulary)
    assert [spelled(vocabulary, row) for row in batch["encoder_input_tokens"].tolist()] == [
        "[CLS] una saw a dog [SEP] the una ran [SEP]",
        "[CLS] una saw a dog [SEP] the dog ran [SEP]",
        "[CLS] una saw [SEP] the hen ran [SEP]",
        "[CLS] una saw a dog . a [SEP] dogs una [SEP]",
        "[CLS] una saw a dog . a [SEP] dogs dog [SEP]",
        "[CLS] una saw a dog [SEP] dogs hen [SEP]",
        "[CLS] a dog [SEP] dog [SEP]",
    ]
    assert batch["labels"].tolist() == [[n, 0] for n in (1, 1, 2, 2, 2, 1, 2)]


@pytest.mark.slow
def test_on_the_fly_and_from_a_cache(data, vocabulary, tmp_path):
    from t5x_lite.data import batches as data_batches
    from t5x_lite.data.cache.making import write_cache

    write_cache(data, vocabulary, tmp_path / "cache")
    from_cache = dataclasses.replace(data, cache=str(tmp_path / "cache"))
    other = data_batches.train_batches(from_cache, vocabulary, seed=0)
    one = data_batches.train_batches(data, vocabulary, seed=0)
    for _ in range(3):
        expected, found = next(one), next(other)
        for name, value in found.items():
            np.testing.assert_array_equal(value, expected[name], err_msg=name)
    other.close()


@pytest.mark.slow
def test_the_rows_of_all_questions_are_permuted_and_a_position_goes_on(data, vocabulary):
    from t5x_lite.data import batches as data_batches

    shuffled = dataclasses.replace(data, shuffle=True)
    batches = data_batches.train_batches(shuffled, vocabulary, seed=1)
    first = next(batches)
    state = batches.state()
    expected = next(batches)
    again = data_batches.train_batches(shuffled, vocabulary, seed=1)
    again.restore(state)
    for name, value in next(again).items():
        np.testing.assert_array_equal(value, expected[name])
    (in_order,) = data_batches.eval_batches(data, vocabulary)
    rows = [first, expected, in_order]
    found = [[tuple(row) for row in batch["encoder_input_tokens"].tolist()] for batch in rows]
    assert set(found[0]) == set(found[1]) == set(found[2])  # each pass has all seven
    assert len({tuple(order) for order in found}) == 3


def test_examples_are_questions_and_a_limit_divides_none(data, vocabulary):
    from t5x_lite.data import reading

    found = reading.eval_examples(data, vocabulary)
    assert [one.raw["idx/query"] for one in found] == [8, 9, 7]
    assert [one.inputs.tolist().count(vocabulary.cls_id) for one in found] == [3, 3, 1]
    assert [one.inputs_text for one in found] == [
        "Una saw a dog. A hen ran the @placeholder ran",
        "Una saw a dog. A hen ran dogs @placeholder",
        "a dog @placeholder",
    ]
    assert [one.targets_text for one in found] == ["hen", "Una", "dog"]
    assert [one.target for one in found] == [
        {"value": ["hen"], "group": (3, 8)},
        {"value": ["Una", "dog"], "group": (3, 9)},
        {"value": ["dog"], "group": (4, 7)},
    ]
    (limited,) = reading.eval_examples(data, vocabulary, max_examples=1)
    np.testing.assert_array_equal(limited.inputs, found[0].inputs)
    unknown = reading.eval_examples(data, vocabulary, split="test")
    assert [(one.targets_text, one.target["value"]) for one in unknown] == [("<unk>", [])] * 3
    np.testing.assert_array_equal(unknown[1].inputs, found[1].inputs)


def test_the_number_of_a_candidate_becomes_its_text():
    text = CandidateText(postprocess.record)
    example = {"candidates": np.array([b"Ann", b"7"], object), "answers": [b"7"]}
    assert [text(n, example=example) for n in ("0", "1", "2", "Bob", "-1")] == [
        {"value": answer} for answer in ("Ann", "7", "2", "Bob", "-1")
    ]
    target = text("1", example={**example, "idx/passage": 1, "idx/query": 2}, is_target=True)
    assert target == {"value": ["7"], "group": (1, 2)}
    assert text.labels == ("False", "True")
    assert text.is_answer("Ann")


def test_rows_become_questions():
    rows = [
        {"inputs": np.array([1, i]), "candidates": names, "answers": answers, "question": b"q"}
        for names, answers in (([b"a", b"b"], []), ([b"c"], [b"c", b"d"]))
        for i in range(len(names))
    ]
    first, second = questions(rows)
    assert (first["inputs"].tolist(), first["targets_pretokenized"]) == ([1, 0, 1, 1], b"<unk>")
    assert (second["inputs"].tolist(), second["targets_pretokenized"]) == ([1, 0], b"c")


COLUMNS = {
    "second": ["@x ran", "@x and @x"],
    "candidates": [["a", "bc"], ["a", "b"]],
    "answers": [["bc"], ["no"]],
    "index": [5, 6],
}


def test_a_stream_has_the_rows_of_what_is_in_memory():
    import tensorflow as tf

    from t5x_lite.data.tasks.questions import expanded

    in_memory = tf.data.Dataset.from_tensor_slices(COLUMNS)
    expected = [("a ran", 1), ("bc ran", 2), ("a and a", 1), ("b and b", 1)]
    for dataset in (in_memory, in_memory.filter(lambda _: True)):
        found = [*expanded(dataset, mark="@x").as_numpy_iterator()]
        assert [(row["second"].decode(), row["label"]) for row in found] == expected
        assert [row["targets"] for row in found] == [b"False", b"True", b"False", b"False"]
        assert [row["index"] for row in found] == [5, 5, 6, 6]


@pytest.mark.parametrize("change", [{"second": ["ran", "@x"]}, {"candidates": [[], []]}])
def test_a_question_without_a_mark_or_candidates_is_refused(change):
    import tensorflow as tf

    from t5x_lite.data.elements import as_numpy
    from t5x_lite.data.tasks.questions import expanded

    columns = {**COLUMNS, **change}
    if not columns["candidates"][0]:
        columns["candidates"] = tf.zeros([2, 0], tf.string)
    dataset = tf.data.Dataset.from_tensor_slices(columns)
    with pytest.raises(
        InputError, match="ran' must contain the placeholder @x and have candidate answers"
    ):
        [*as_numpy(expanded(dataset, mark="@x"))]
