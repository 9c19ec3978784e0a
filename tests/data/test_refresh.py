"""When negatives are searched for: which checkpoint a batch's negatives are of."""

import pytest

from t5x_lite import layouts
from t5x_lite.core.errors import InputError
from t5x_lite.data.config import Data, Refresh, Scheduled


@pytest.mark.parametrize(
    ("lag", "steps"),
    [(0, [0, 0, 3, 3, 3, 6, 6]), (1, [0, 0, 0, 0, 0, 3, 3]), (2, [0, 0, 0, 0, 0, 0, 0])],
)
def test_the_checkpoint_that_searches_for_a_batch(lag, steps):
    refresh = Refresh(period=3, lag=lag, directory="d")
    assert [refresh.searched_by(number) for number in (0, 2, 3, 4, 5, 6, 8)] == steps


def test_identity():
    assert Refresh().identity() == {}
    assert Refresh(period=3, directory="d").identity() == {"refresh": [3, 1, 200]}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"period": -1}, "period must be at least 0: got -1"),
        ({"top": 0}, "top must be at least 1"),
        ({"period": 3}, "data.refresh.directory is not"),
    ],
)
def test_wrong_fields(fields, message):
    with pytest.raises(InputError, match=message):
        Refresh(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"layout": layouts.Encoder()}, "needs rows with negatives, but data.layout is encoder"),
        ({"batches": Scheduled({114: 128})}, r"changes the lengths of rows.* use Bucketed\(\) or"),
        (
            {"layout": layouts.Groups(teacher=True)},
            "provides neither teacher scores nor passage ids",
        ),
        (
            {"layout": layouts.Groups(known_positives=1)},
            "provides neither teacher scores nor passage ids",
        ),
    ],
)
def test_what_does_not_go_together(fields, message):
    fields = {"layout": layouts.Groups(), **fields}
    with pytest.raises(InputError, match=message):
        Data(
            cache="c",
            vocabulary="",
            pack=False,
            refresh=Refresh(period=3, directory="d"),
            **fields,
        )
