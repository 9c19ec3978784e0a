import dataclasses
from typing import ClassVar

import numpy as np
import pytest

from t5x_lite import layouts
from t5x_lite.core.errors import InputError

BOTH = ["inputs", "targets"]
QUERIES = ["query", "positives", "negatives"]


@pytest.mark.parametrize(
    ("layout", "there"),
    [
        (layouts.Seq2Seq(), BOTH),
        (layouts.LM(), ["targets", "idx"]),
        (layouts.Encoder(), ["inputs", "idx"]),
        (layouts.Groups(), QUERIES),
        (layouts.Groups(), [*QUERIES, "scores"]),
        (layouts.Labelled(), ["inputs", "labels", "idx"]),
        (layouts.Labelled(), ["inputs", "labels", "scores"]),
        (layouts.Tokens(), ["inputs", "token_labels"]),
        # What no layout would rather show changes nothing.
        (layouts.Seq2Seq(), [*BOTH, "scores", "positives"]),
        (layouts.Labelled(), [*BOTH, "labels"]),
        (layouts.Groups(), [*QUERIES, "inputs"]),
    ],
)
def test_a_layout_that_fits_a_task(layout, there):
    assert layout.of_task(there).name == layout.name


@pytest.mark.parametrize(
    ("layout", "there", "message"),
    [
        (layouts.LM(), BOTH, "use concat_lm or prefix_lm or seq2seq or a task such as tasks.text"),
        (
            layouts.Seq2Seq(),
            ["targets"],
            "seq2seq needs the features inputs and targets, but the task has ta",
        ),
        (layouts.Seq2Seq(), ["inputs"], "the task has inputs; use encoder or a task such as ta"),
        (
            layouts.Groups(),
            BOTH,
            "groups needs the features query and positives and negatives, but the task h",
        ),
        (
            layouts.Encoder(),
            QUERIES,
            "has negatives and positives and query; use groups or ranked or a t",
        ),
        (layouts.Labelled(), BOTH, "a task such as tasks.glue:sst2"),
        (layouts.Seq2Seq(), ["inputs", "labels"], "has inputs and labels; use labelled or a ta"),
        (layouts.Encoder(), ["inputs", "token_labels"], "inputs and token_labels; use tokens or a"),
        (layouts.Tokens(), ["inputs", "labels"], "use labelled or a task such as tasks.tokens:co"),
        (layouts.Encoder(), ["idx"], "the task has idx; use a task such as tasks.encoder:d"),
    ],
)
def test_a_layout_that_does_not_fit_names_those_that_do(layout, there, message):
    with pytest.raises(InputError, match=message):
        layout.check(there)


def test_which_layouts_a_head_answers():
    every = (layouts.Seq2Seq, layouts.LM, layouts.Encoder, layouts.Groups)
    assert not any(layout().answered_by_head for layout in every)
    answered = (layouts.Labelled, layouts.Choices, layouts.Tokens)
    assert all(layout().answered_by_head for layout in answered)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Images(layouts.Layout):
    """One of a user's own."""

    features: ClassVar[tuple[str, ...]] = ("pixels",)


def test_a_layout_of_one_s_own_is_named_after_its_class_and_changes_no_other():
    assert Images().identity() == {"layout": "Images"}
    assert Images().of_task(["pixels"]) == Images()
    with pytest.raises(InputError, match=r"the task has pixels; use a task such as tasks\.encod"):
        layouts.Encoder().check(["pixels"])
    layouts.Seq2Seq().check([*BOTH, "pixels"])
    with pytest.raises(TypeError, match="Images does not define the method lay_out"):
        Images().lay_out([], np.zeros(0, np.int64), num_rows=1, lengths={}, pack=False)


@pytest.mark.parametrize(
    ("layout", "there", "message"),
    [
        (
            layouts.Groups(),
            BOTH,
            "groups needs the features query and positives and negatives, but",
        ),
        (
            layouts.Encoder(),
            BOTH,
            "encoder needs the features inputs, but the task has inputs and",
        ),
        (
            layouts.Encoder(),
            ["targets"],
            "has targets; use lm or a task such as tasks.e",
        ),
        (
            layouts.LM(),
            ["inputs"],
            "lm needs the features targets, but the task has inputs; use encoder or a",
        ),
        (layouts.LM(), BOTH, "inputs and targets; use concat_lm or prefix_lm or seq2seq or a"),
        (
            layouts.PrefixLM(),
            ["targets"],
            "prefix_lm needs the features inputs and targets, but the task",
        ),
        (
            layouts.Seq2Seq(),
            ["targets"],
            "seq2seq needs the features inputs and targets, but the task",
        ),
    ],
)
def test_a_layout_that_does_not_fit_the_task_is_refused(layout, there, message):
    with pytest.raises(InputError, match=message):
        layout.of_task(tuple(there))
