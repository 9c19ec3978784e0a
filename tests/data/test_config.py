import pytest

from t5x_lite import layouts
from t5x_lite.core.errors import InputError
from t5x_lite.data.config import (
    Bucketed,
    Data,
    Fixed,
    lengths_of,
    rows_named,
    shapes_of,
    trimmed_lengths,
)


def test_the_defaults_are_those_of_the_papers_baseline():
    data = Data(task="tasks.text:span_corruption", vocabulary="spiece.model")
    assert (data.batch_size, data.inputs_length, data.targets_length) == (128, 512, 114)
    assert (data.layout, data.pack, data.extra_ids) == (layouts.Seq2Seq(), True, 100)


@pytest.mark.parametrize(
    "name", ["batch_size", "inputs_length", "targets_length", "shuffle_buffer"]
)
def test_sizes_of_zero_are_refused(name):
    with pytest.raises(InputError, match=f"data.{name} must be at least 1: got 0"):
        Data(task="a:b", vocabulary="v", **{name: 0})


def test_a_task_or_a_cache_must_be_given():
    assert Data(cache="c", vocabulary="v").task == ""
    assert Data(cache=("a=1", "b=2"), vocabulary="v").cache == ("a=1", "b=2")
    with pytest.raises(InputError, match=r"give --data\.task module:function, or --data\.cache"):
        Data(vocabulary="v")


def test_negative_extra_ids_are_refused():
    with pytest.raises(InputError, match=r"data\.extra_ids must be at least 0: got -1"):
        Data(task="a:b", vocabulary="v", extra_ids=-1)


def test_lengths_are_those_of_the_layouts_features():
    with pytest.raises(
        InputError, match=r"groups has one example per row, but data\.pack is True; set data\.pack"
    ):
        Data(task="a:b", vocabulary="v", layout=layouts.Groups())
    sizes = {"inputs_length": 8, "targets_length": 10}
    data = Data(task="a:b", vocabulary="v", layout=layouts.Groups(negatives=2), pack=False, **sizes)
    assert lengths_of(data) == {"query": 8, "positives": 10, "negatives": 10}
    assert trimmed_lengths(data) == {"inputs": 8, "targets": 10, "query": 8}
    assert lengths_of(Data(task="a:b", vocabulary="v", **sizes)) == {"inputs": 8, "targets": 10}


BUCKETS = {
    "task": "a:b",
    "vocabulary": "v",
    "layout": layouts.Groups(),
    "batches": Bucketed({4: 6, 10: 2}),
    "inputs_length": 8,
    "targets_length": 10,
    "batch_size": 2,
    "pack": False,
}


def test_each_shape_is_a_config_of_one_shape():
    one = Data(task="a:b", vocabulary="v")
    assert (one.batches, shapes_of(one)) == (Fixed(), (one,))
    assert rows_named(one, one) == "data.batch_size 128"
    data = Data(**BUCKETS)
    found = shapes_of(data)
    sizes = [(shape.batch_size, shape.inputs_length, shape.targets_length) for shape in found]
    assert sizes == [(6, 8, 4), (2, 8, 10)]
    assert {shape.batches for shape in found} == {Fixed()}
    assert rows_named(data, found[0]) == "data.batches of 6 rows of 4 tokens"
    documents = {**BUCKETS, "layout": layouts.Encoder(), "inputs_length": 10}
    assert [shape.inputs_length for shape in shapes_of(Data(**documents))] == [4, 10]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layout": layouts.Seq2Seq()}, "does not support data.layout seq2seq; use it with"),
        ({"layout": layouts.LM()}, "does not support data.layout lm; use it with Encoder"),
        (
            {"layout": layouts.Encoder(), "pack": True},
            "one example per row, but data.pack is True; set data.pack to False",
        ),
        (
            {"targets_length": 12},
            "data.targets_length is 12 and data.batch_size is 2, but the longest shape in "
            "data.batches has 2 rows of 10 tokens; set --data.targets-length 10 --data.batch-size "
            "2, or change",
        ),
        (
            {"batch_size": 4},
            "data.targets_length is 10 and data.batch_size is 4, but the longest shape",
        ),
    ],
)
def test_batches_that_do_not_fit(changes, message):
    with pytest.raises(InputError, match=message):
        Data(**{**BUCKETS, **changes})
