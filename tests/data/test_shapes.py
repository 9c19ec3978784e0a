import dataclasses

import numpy as np
import pytest

from t5x_lite.config.file import from_json, to_json
from t5x_lite.core.errors import InputError
from t5x_lite.data.config import Batches, Bucketed, Fixed, Scheduled, bucket_of


def test_one_shape_has_no_buckets():
    assert (Fixed().buckets(), Fixed().identity(), Batches().buckets()) == ((), {}, ())


def test_shapes_are_given_as_a_dict_or_as_pairs():
    batches = Bucketed({4: 2, 8: 1})
    assert batches.shapes == batches.buckets() == ((4, 2), (8, 1))
    assert batches == Bucketed(shapes=[(4, 2), (8, 1)]) == dataclasses.replace(batches)
    assert hash(batches) == hash(Bucketed(((4, 2), (8, 1))))
    assert repr(batches) == "Bucketed(shapes=((4, 2), (8, 1)))"
    assert batches.identity() == {"batches": [[4, 2], [8, 1]]}
    with pytest.raises(dataclasses.FrozenInstanceError):
        batches.shapes = ()


@pytest.mark.parametrize(
    "batches", [Fixed(), Bucketed({4: 2, 8: 1}), Scheduled({4: 2, 8: 1}, 7, 3)]
)
def test_json_gives_them_back(batches):
    assert from_json(to_json(batches), source="config.json") == batches


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({}, r"is empty; give row lengths and numbers of rows, such as 512 64$"),
        ({4: 2, 8: 0}, r"integers of at least 1, but are 8 and 0$"),
        ({0: 2}, r"integers of at least 1, but are 0 and 2$"),
        ({8: 1, 4: 2}, r"row lengths must increase, but are 8, 4$"),
        ([(4, 2), (4, 1)], r"row lengths must increase, but are 4, 4$"),
    ],
)
def test_shapes_that_are_none(shapes, message):
    with pytest.raises(InputError, match=message):
        Bucketed(shapes)


def test_schedules():
    batches = Scheduled({4: 2, 8: 1}, small=7)
    assert batches.identity() == {"batches": [[4, 2], [8, 1]], "schedule": [7, 0]}
    assert batches == dataclasses.replace(batches) != Scheduled({4: 2, 8: 1})
    with pytest.raises(
        InputError, match="more rows than a shorter shape, but the numbers of rows are 1, 2"
    ):
        Scheduled({4: 1, 8: 2})
    with pytest.raises(InputError, match=r"data\.batches\.drop must be at least 0: got -1"):
        Scheduled({4: 2}, drop=-1)


def test_a_row_goes_to_the_shortest_length_that_holds_it():
    lengths = np.array([1, 4, 5, 8, 9, 16, 17])
    assert bucket_of(lengths, ((4, 9), (8, 9), (16, 9))).tolist() == [0, 0, 1, 1, 2, 2, 2]
