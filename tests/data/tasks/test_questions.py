"""Contexts in windows: boundaries and labels, on the fly and from caches, for the metrics."""

import dataclasses
import json

import numpy as np
import pytest

from t5x_lite import layouts
from t5x_lite.core.errors import InputError
from t5x_lite.data.config import Data
from t5x_lite.data.tasks.labelled import IMPOSSIBLE
from t5x_lite.data.tasks.questions import divided, window_rows
from t5x_lite.data.vocabularies.encoder_tokens import encoder_tokens

CONTEXT = "the dog run a b c d e f g h"  # 11 tokens
NONE, NULL = (0, 0), (1, 1)


def berts(size, room, stride):
    """google-research/bert run_squad.py: start and length of each window."""
    found, start_offset = [], 0
    while start_offset < size:
        length = min(size - start_offset, room)
        found.append((start_offset, length))
        if start_offset + length == size:
            break
        start_offset += min(length, stride)
    return found


def test_a_text_is_divided():
    assert divided(11, room=7, stride=3) == [range(7), range(3, 10), range(6, 11)]
    assert divided(7, room=7, stride=3) == [range(7)]
    assert divided(8, room=7, stride=100) == [range(7), range(7, 8)]
    assert divided(0, room=7, stride=3) == [range(0)]
    for size, room, stride in [(s, r, t) for s in range(1, 12) for r in (1, 4) for t in (1, 3, 9)]:
        found = [(one.start, len(one)) for one in divided(size, room=room, stride=stride)]
        assert found == berts(size, room, stride)


def windows(vocabulary, span, *, context=CONTEXT, length=12, query_length=64):
    (rows,) = window_rows(
        ["run dog"],
        [context],
        np.array([span]),
        vocabulary=vocabulary,
        tokens=encoder_tokens(vocabulary),
        length=length,
        doc_stride=3,
        query_length=query_length,
    )
    pieces = vocabulary.pieces()
    return [" ".join(pieces[i] for i in row.tokens) for row in rows], [row.label for row in rows]


def test_windows_have_the_tokens_that_the_question_leaves(vocabulary):
    rows, _ = windows(vocabulary, NONE)
    assert rows == [
        "[CLS] run dog [SEP] the dog run a b c d",
        "[CLS] run dog [SEP] a b c d e f g",
        "[CLS] run dog [SEP] d e f g h",
    ]
    rows, _ = windows(vocabulary, NONE, query_length=1)
    assert rows[0] == "[CLS] run [SEP] the dog run a b c d e"
    assert windows(vocabulary, IMPOSSIBLE, context="") == (["[CLS] run dog [SEP]"], [NULL])


@pytest.mark.parametrize(
    ("span", "expected"),
    [
        ((18, 19), [(11, 11), (8, 8), (5, 5)]),  # d, of all windows
        ((16, 21), [NULL, (7, 9), NULL]),  # c d e: the first window lacks e, the third c
        ((0, 3), [(5, 5), NULL, NULL]),
        ((25, 27), [NULL, NULL, (9, 9)]),  # h, with the space before it
        ((0, 27), [NULL, NULL, NULL]),  # longer than any window
        (IMPOSSIBLE, [NULL, NULL, NULL]),
        (NONE, [NONE, NONE, NONE]),
    ],
)
def test_a_window_has_the_whole_answer_or_none(vocabulary, span, expected):
    assert windows(vocabulary, span)[1] == expected


@pytest.fixture
def data(tmp_path):
    paragraphs = []
    for number in range(7):
        context = CONTEXT if number % 2 else "a dog"
        answers = [{"text": "d", "answer_start": 18 if number % 2 else 2}]
        qas = [
            {"id": f"q{number}", "question": "run dog", "is_impossible": False, "answers": answers},
            {"id": f"n{number}", "question": "una", "is_impossible": True, "answers": []},
        ]
        paragraphs.append({"context": context, "qas": qas})
    for name in ("train-v2.0.json", "dev-v2.0.json"):
        (tmp_path / name).write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    return Data(
        task="tasks.squad:squad_v2",
        vocabulary="",
        directory=str(tmp_path),
        layout=layouts.Windows(doc_stride=3),
        batch_size=5,
        inputs_length=12,
        pack=False,
        shuffle=False,
        shuffle_buffer=8,
    )


def equal(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)


@pytest.mark.slow
def test_windows_are_rows_on_the_fly_and_from_a_cache(data, vocabulary, tmp_path):
    from t5x_lite.data import batches as data_batches
    from t5x_lite.data.cache.making import write_cache

    index = write_cache(data, vocabulary, tmp_path / "cache")
    assert index.recipe.fixed == {"doc_stride": 3, "query_length": 64}
    from_cache = dataclasses.replace(data, cache=str(tmp_path / "cache"))
    one = data_batches.train_batches(data, vocabulary, seed=0)
    other = data_batches.train_batches(from_cache, vocabulary, seed=0)
    # 4 contexts of one window and 3 of three, or of two for the shorter question; two questions.
    assert index.splits["train"].examples == 4 * 2 + 3 * (3 + 2)
    first = next(one)
    assert first["labels"].tolist() == [[6, 6], [1, 1], [11, 11], [8, 8], [5, 5]]
    equal(first, next(other))
    for _ in range(6):  # into the second epoch
        equal(next(one), next(other))
    other.close()
    held_out = list(data_batches.eval_batches(data, vocabulary))
    for batch, again in zip(
        held_out, data_batches.eval_batches(from_cache, vocabulary), strict=True
    ):
        equal(batch, again)
    assert sum(np.count_nonzero(batch["labels"][:, 0]) for batch in held_out) == 23
    for layout, message in (
        (layouts.Windows(doc_stride=4), r"cache .*; set --data\.layout\.doc-stride 3, or write"),
        (
            layouts.Labelled(),
            "labelled needs the features inputs and labels, .* use windows or a task",
        ),
    ):
        with pytest.raises(InputError, match=message):
            data_batches.train_batches(
                dataclasses.replace(from_cache, layout=layout), vocabulary, seed=0
            )


@pytest.mark.slow
def test_shuffled_windows_go_on_where_they_were(data, vocabulary):
    from t5x_lite.data import batches as data_batches

    data = dataclasses.replace(data, shuffle=True)
    batches = data_batches.train_batches(data, vocabulary, seed=3)
    next(batches)
    state = batches.state()
    expected = [next(batches) for _ in range(5)]
    again = data_batches.train_batches(data, vocabulary, seed=3)
    again.restore(state)
    for batch in expected:
        equal(batch, next(again))
    other = dataclasses.replace(data, layout=layouts.Windows(doc_stride=4))
    with pytest.raises(
        InputError, match=r"belongs to data with other settings: doc_stride 3 \(now 4\)"
    ):
        data_batches.train_batches(other, vocabulary, seed=3).restore(state)


def test_the_metrics_see_questions(data, vocabulary):
    from t5x_lite.data import loading, reading

    examples = reading.eval_examples(data, vocabulary, max_examples=4)
    assert [one.raw["id"] for one in examples] == ["q0", "n0", "q1", "n1"]
    assert [one.inputs.tolist().count(vocabulary.cls_id) for one in examples] == [1, 1, 3, 2]
    assert [one.targets_text for one in examples] == ["d", "", "d", ""]
    assert [one.target for one in examples] == [["d"], [""], ["d"], [""]]
    assert examples[2].inputs_text == f"run dog {CONTEXT}"
    task = loading.load_task(data, vocabulary)
    postprocess, (metric,) = loading.task_metrics(task)
    found = postprocess("6 7", example=examples[2].raw, is_target=False, null_odds=-2.0)
    assert found == {"value": "d e", "null_odds": -2.0}
    right = [postprocess(one.targets_text, example=one.raw, is_target=False) for one in examples]
    assert metric([one.target for one in examples], right)["f1"] == 1.0


def test_a_task_of_classes_has_no_windows(data, vocabulary, tmp_path):
    from t5x_lite.data import batches as data_batches

    (tmp_path / "SST-2").mkdir()
    (tmp_path / "SST-2" / "train.tsv").write_text("sentence\tlabel\ndog\t1\n")
    other = dataclasses.replace(data, task="tasks.glue:sst2")
    with pytest.raises(
        InputError, match=r"windows needs the features .* use labelled or a task such as tasks\.sq"
    ):
        next(data_batches.train_batches(other, vocabulary, seed=0))
