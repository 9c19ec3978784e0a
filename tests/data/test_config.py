import pytest

from t5x_lite.data.config import Data, check_features, lengths_of
from t5x_lite.errors import InputError


def test_the_defaults_are_those_of_the_papers_baseline():
    data = Data(task="tasks.text:span_corruption", vocabulary="spiece.model")
    assert (data.batch_size, data.inputs_length, data.targets_length) == (128, 512, 114)
    assert (data.layout, data.pack, data.extra_ids) == ("seq2seq", True, 100)


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


BOTH = ["inputs", "targets"]


@pytest.mark.parametrize(
    ("layout", "there", "message"),
    [
        ("lm", BOTH, "'lm' shows targets only, but the task gives inputs too: use prefix_lm"),
        ("seq2seq", ["targets"], "'seq2seq' shows inputs and targets, but the task gives targets"),
        ("seq2seq", ["inputs"], "'seq2seq' shows targets, but the task gives inputs only: use enc"),
        ("pairs", BOTH, "'pairs' shows queries and passages, and the task gives inputs and targ"),
        ("encoder", ["query", "passages"], "gives queries and passages, and data.layout is 'enco"),
        (
            "labelled",
            BOTH,
            "'labelled' shows a text and its label, and the task gives inputs and t",
        ),
        ("seq2seq", ["inputs", "labels"], "gives texts and labels, and data.layout is 'seq2seq'"),
        ("encoder", BOTH, "'encoder' shows inputs only, and the task gives inputs and targets: "),
    ],
)
def test_a_layout_that_does_not_fit_the_features_is_refused(layout, there, message):
    fitting = {
        "lm": ["targets"],
        "encoder": ["inputs", "idx"],
        "pairs": ["query", "passages"],
        "labelled": ["inputs", "labels", "idx"],
    }
    check_features(layout, fitting.get(layout, BOTH))
    with pytest.raises(InputError, match=message):
        check_features(layout, there)


def test_negative_extra_ids_are_refused():
    with pytest.raises(InputError, match=r"data\.extra_ids must not be negative, got -1"):
        Data(task="a:b", vocabulary="v", extra_ids=-1)


@pytest.mark.parametrize(
    ("layout", "hint"),
    [
        ("prefix-lm", "did you mean prefix_lm"),
        ("rows", "there are: seq2seq, lm, prefix_lm, concat_lm, encoder, pairs"),
    ],
)
def test_an_unknown_layout_is_refused(layout, hint):
    with pytest.raises(InputError, match=f"unknown data.layout '{layout}': {hint}"):
        Data(task="a:b", vocabulary="v", layout=layout)


def test_pairs_have_a_query_a_row_and_passages_one_behind_the_other():
    with pytest.raises(InputError, match=r"has a query a row: set data\.pack to False"):
        Data(task="a:b", vocabulary="v", layout="pairs")
    with pytest.raises(InputError, match=r"data\.negatives must not be negative, got -1"):
        Data(task="a:b", vocabulary="v", negatives=-1)
    data = Data(
        task="a:b",
        vocabulary="v",
        layout="pairs",
        pack=False,
        inputs_length=8,
        targets_length=10,
        negatives=2,
    )
    lengths = {"inputs": 8, "targets": 10, "query": 8, "passages": 30, "labels": 2}
    assert lengths_of(data) == lengths
