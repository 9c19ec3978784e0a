import pytest

from t5x_lite.serve import batching


@pytest.mark.parametrize(
    ("largest", "expected"),
    [
        (1, (1,)),
        (2, (1, 2)),
        (4, (1, 4)),
        (5, (1, 4, 5)),
        (32, (1, 4, 16, 32)),
        (64, (1, 4, 16, 64)),
    ],
)
def test_sizes(largest, expected):
    assert batching.sizes(largest) == expected


@pytest.mark.parametrize(
    ("longest", "expected"),
    [(1, (16,)), (32, (32,)), (64, (16, 64)), (65, (32, 128)), (512, (32, 128, 512))],
)
def test_lengths(longest, expected):
    assert batching.lengths(longest) == expected


def test_fit_takes_the_least_that_holds_it():
    choices = (32, 128, 512)
    assert [batching.fit(choices, n) for n in (1, 32, 33, 512, 513)] == [32, 32, 128, 512, 512]
