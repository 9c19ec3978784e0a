import pytest

from t5x_lite.data import layouts
from t5x_lite.data.config import Data, lengths_of, trimmed_lengths
from t5x_lite.errors import InputError


def test_the_defaults_are_those_of_the_papers_baseline():
    data = Data(task="tasks.text:span_corruption", vocabulary="spiece.model")
    assert (data.batch_size, data.inputs_length, data.targets_length) == (128, 512, 114)
    assert (data.layout, data.pack, data.extra_ids) == (layouts.Seq2Seq(), True, 100)


@pytest.mark.parametrize(
    "name", ["batch_size", "inputs_length", "targets_length", "shuffle_buffer"]
)
def test_sizes_of_zero_are_refused(name):
    with pytest.raises(InputError, match=f"data.{name} must be at least 1, got 0"):
        Data(task="a:b", vocabulary="v", **{name: 0})


def test_a_task_or_a_cache_must_be_given():
    assert Data(cache="c", vocabulary="v").task == ""
    assert Data(cache=("a=1", "b=2"), vocabulary="v").cache == ("a=1", "b=2")
    with pytest.raises(InputError, match=r"give --data\.task module:function, or --data\.cache"):
        Data(vocabulary="v")


def test_negative_extra_ids_are_refused():
    with pytest.raises(InputError, match=r"data\.extra_ids must not be negative, got -1"):
        Data(task="a:b", vocabulary="v", extra_ids=-1)


def test_lengths_are_those_of_the_layouts_features():
    with pytest.raises(InputError, match=r"groups has one example a row: set data\.pack to False"):
        Data(task="a:b", vocabulary="v", layout=layouts.Groups())
    sizes = {"inputs_length": 8, "targets_length": 10}
    data = Data(task="a:b", vocabulary="v", layout=layouts.Groups(negatives=2), pack=False, **sizes)
    assert lengths_of(data) == {"query": 8, "positives": 10, "negatives": 10}
    assert trimmed_lengths(data) == {"inputs": 8, "targets": 10, "query": 8}
    assert lengths_of(Data(task="a:b", vocabulary="v", **sizes)) == {"inputs": 8, "targets": 10}
