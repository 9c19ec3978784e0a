import dataclasses
import json

import numpy as np
import pytest

from t5x_lite.data import layouts
from t5x_lite.data.config import Data
from t5x_lite.errors import InputError
from t5x_lite.vocabulary.loading import load_vocabulary
from tests import tokenizer_files


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    return load_vocabulary(tokenizer_files.write_wordpiece(tmp_path_factory.mktemp("vocabulary")))


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
    from t5x_lite.data.cache import batches as cached
    from t5x_lite.data.cache.making import write_cache
    from t5x_lite.data.live import pipeline

    write_cache(data, vocabulary, tmp_path / "cache")
    from_cache = dataclasses.replace(data, cache=str(tmp_path / "cache"))
    one = pipeline.train_batches(data, vocabulary, seed=0)
    other = cached.train_batches(from_cache, vocabulary, seed=0)
    for _ in range(3):  # into the second epoch
        expected, found = next(one), next(other)
        assert found["encoder_input_tokens"].shape == (4, 2, 16)
        for name, value in found.items():
            np.testing.assert_array_equal(value, expected[name], err_msg=name)
    other.close()
    (last,) = pipeline.eval_batches(data, vocabulary)
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
    from t5x_lite.data.live import pipeline

    first, *_ = pipeline.eval_examples(data, vocabulary)
    assert (first.targets_text, first.target, first.raw["idx"]) == ("choice1", 0, 0)
    assert first.inputs_text == "the dog What was the cause of this? dogs run | run"
    assert first.inputs.tolist().count(vocabulary.cls_id) == 2
    (unknown,) = pipeline.eval_examples(data, vocabulary, split="test")
    assert (unknown.targets_text, unknown.raw["labels"].tolist()) == ("<unk>", [0, 0])


def test_another_layout_is_refused(data, vocabulary):
    from t5x_lite.data.live import pipeline

    other = dataclasses.replace(data, layout=layouts.Labelled())
    with pytest.raises(InputError, match="the task gives choices and labels: use choices or a ta"):
        next(pipeline.eval_batches(other, vocabulary))


def test_files_of_one_s_own(data, vocabulary, tmp_path):
    from t5x_lite.data.live import pipeline

    line = {"question": "the dog", "choices": ["run", "dogs", "a"], "label": 2}
    write(tmp_path / "train.jsonl", line)
    write(tmp_path / "validation.jsonl", line, {**line, "choices": ["run"]})
    own = dataclasses.replace(data, task="tasks.choices:jsonl", layout=layouts.Choices(num=3))
    batch = next(pipeline.train_batches(own, vocabulary, seed=0))
    assert batch["labels"].tolist() == [[3, 0]] * 4
    with pytest.raises(InputError, match=r"validation\.jsonl:2: has 1 choices, and .*num is 3"):
        next(pipeline.eval_batches(own, vocabulary))
    with pytest.raises(InputError, match=r"needs data\.layout choices, got labelled"):
        pipeline.load_task(dataclasses.replace(own, layout=layouts.Labelled()), vocabulary)
