import dataclasses
import json

import numpy as np
import pytest

from t5x_lite import layouts
from t5x_lite.core.errors import InputError
from t5x_lite.data.config import Data
from tests.data.formats import test_released_files as released


def write(path, *records):
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text("\n".join(map(json.dumps, records)))


def copa(index, **others):
    return {
        "premise": "the dog",
        "choice1": "dogs run",
        "choice2": "run",
        "question": ("cause", "effect")[index % 2],
        "idx": index,
        **others,
    }


@pytest.fixture
def data(tmp_path):
    root = tmp_path / "COPA"
    write(root / "train.jsonl", *(copa(i, label=i % 2) for i in range(5)))
    write(root / "val.jsonl", *(copa(i, label=i % 2) for i in range(3)))
    write(root / "test.jsonl", copa(0))
    return Data(
        task="tasks.super_glue:copa",
        vocabulary="",
        directory=str(tmp_path),
        layout=layouts.Choices(),
        batch_size=4,
        inputs_length=16,
        pack=False,
        shuffle=False,
    )


@pytest.mark.slow
def test_copa_on_the_fly_and_from_a_cache(data, vocabulary, tmp_path):
    from t5x_lite.data import batches as data_batches
    from t5x_lite.data.cache.making import write_cache

    write_cache(data, vocabulary, tmp_path / "cache")
    from_cache = dataclasses.replace(data, cache=str(tmp_path / "cache"))
    one = data_batches.train_batches(data, vocabulary, seed=0)
    other = data_batches.train_batches(from_cache, vocabulary, seed=0)
    for _ in range(3):  # into the second epoch
        expected, found = next(one), next(other)
        assert found["encoder_input_tokens"].shape == (4, 2, 16)
        for name, value in found.items():
            np.testing.assert_array_equal(value, expected[name], err_msg=name)
    other.close()
    (last,) = data_batches.eval_batches(data, vocabulary)
    assert last["labels"][:, 0].tolist() == [1, 2, 1, 0]
    pieces = vocabulary.pieces()
    first = [[pieces[i] for i in row if i != vocabulary.pad_id] for row in
             last["encoder_input_tokens"][0].tolist()]  # fmt: skip
    assert [" ".join(row[:3]) for row in first] == ["[CLS] the dog"] * 2
    assert [" ".join(row[row.index("[SEP]") :]) for row in first] == [
        "[SEP] dog ##s run [SEP]",
        "[SEP] run [SEP]",
    ]


def test_an_example_is_all_its_texts(data, vocabulary):
    from t5x_lite.data import reading

    first, *_ = reading.eval_examples(data, vocabulary)
    assert (first.targets_text, first.target, first.raw["idx"]) == ("choice1", 0, 0)
    assert first.inputs_text == "the dog What was the cause of this? dogs run | run"
    assert first.inputs.tolist().count(vocabulary.cls_id) == 2
    (unknown,) = reading.eval_examples(data, vocabulary, split="test")
    assert (unknown.targets_text, unknown.raw["labels"].tolist()) == ("<unk>", [0, 0])


def test_another_layout_is_refused(data, vocabulary):
    from t5x_lite.data import batches as data_batches

    other = dataclasses.replace(data, layout=layouts.Labelled())
    with pytest.raises(InputError, match="the task has choices and labels; use choices or a ta"):
        next(data_batches.eval_batches(other, vocabulary))


def test_files_of_one_s_own(data, vocabulary, tmp_path):
    from t5x_lite.data import batches as data_batches
    from t5x_lite.data import loading

    line = {"question": "the dog", "choices": ["run", "dogs", "a"], "label": 2}
    write(tmp_path / "train.jsonl", line)
    write(tmp_path / "validation.jsonl", line, {**line, "choices": ["run"]})
    own = dataclasses.replace(data, task="tasks.choices:jsonl", layout=layouts.Choices(num=3))
    batch = next(data_batches.train_batches(own, vocabulary, seed=0))
    assert batch["labels"].tolist() == [[3, 0]] * 4
    with pytest.raises(InputError, match=r"validation\.jsonl:2: has 1 choices, but .*num is 3"):
        next(data_batches.eval_batches(own, vocabulary))
    with pytest.raises(InputError, match=r"needs data\.layout choices, got labelled"):
        loading.load_task(dataclasses.replace(own, layout=layouts.Labelled()), vocabulary)


def race_data(data, tmp_path, layout):
    text = released.race(questions=["The dog _ ?", "Why?"], answers=["B", "D"], article="dogs run")
    for split in ("train", "dev", "test"):
        released.write(tmp_path / "RACE" / split / "high" / "1.txt", text)
    named = {"task": "tasks.choices:race", "layout": layout, "inputs_length": 24}
    return dataclasses.replace(data, **named)


def test_race_for_an_encoder(data, vocabulary, tmp_path):
    from t5x_lite.data import batches as data_batches
    from t5x_lite.data import loading, reading

    race = race_data(data, tmp_path, layouts.Choices(num=4))
    first, second = reading.eval_examples(race, vocabulary)
    shown = "dogs run The dog a ? | The dog b ? | The dog c ? | The dog d ?"
    assert first.inputs_text == shown
    assert (first.targets_text, first.target) == ("choice2", 1)
    assert (second.inputs_text, second.target) == ("dogs run Why? a | Why? b | Why? c | Why? d", 3)
    assert next(data_batches.train_batches(race, vocabulary, seed=0))["labels"].shape == (4, 2)
    with pytest.raises(InputError, match=r"requires data\.layout choices with data\.layout\.num 4"):
        loading.load_task(dataclasses.replace(race, layout=layouts.Choices()), vocabulary)
    other = dataclasses.replace(race, task="tasks.choices:race_middle")
    with pytest.raises(InputError, match=r"has neither RACE's train\|dev\|test/middle/\*\.txt"):
        loading.load_task(other, vocabulary)


def test_race_as_text_to_text(data, vocabulary, tmp_path):
    from t5x_lite.data import loading, reading
    from t5x_lite.data.loading import task_labels, task_metrics

    race = race_data(data, tmp_path, layouts.Seq2Seq())
    first, _ = reading.eval_examples(race, vocabulary)
    assert first.inputs_text == (
        "race question: The dog _ ? choice1: a choice2: b choice3: c choice4: d article: dogs run"
    )
    assert (first.targets_text, first.target) == ("choice2", 1)
    task = loading.load_task(race, vocabulary)
    assert task_labels(task) == ("choice1", "choice2", "choice3", "choice4")
    assert [metric([1, 3], [1, 2]) for metric in task_metrics(task)[1]] == [{"accuracy": 0.5}]
    worded = dataclasses.replace(race, template="{article} {question} {choice1}", prefix="")
    assert reading.eval_examples(worded, vocabulary)[0].inputs_text == "dogs run The dog _ ? a"


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        (layouts.Choices(num=4), "A, b. She s. | She t. | She w. | She x"),
        (
            layouts.Seq2Seq(),
            "swag choice1: s. choice2: t. choice3: w. choice4: x sentence: A, b. She",
        ),
    ],
)
def test_swag(data, vocabulary, tmp_path, layout, text):
    from t5x_lite.data import reading

    row = '0,v,1,"A, b. She","A, b.",She,gold,s.,t.,w.,x,2'
    for name in ("train", "val"):
        released.write(tmp_path / f"{name}.csv", f"{released.SWAG_HEAD}\n{row}\n")
    swag = dataclasses.replace(data, task="tasks.choices:swag", layout=layout)
    (one,) = reading.eval_examples(swag, vocabulary)
    assert (one.inputs_text, one.targets_text, one.target) == (text, "choice3", 2)
