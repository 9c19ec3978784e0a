import itertools

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.formats.pairs import Share


@pytest.mark.parametrize(("total", "of"), [(1000, 3), (64, 1), (641, 10), (640, 10)])
def test_parts_are_runs_of_whole_blocks(total, of):
    bounds = [Share(i + 1, of).bounds(total, whole=64, what="texts") for i in range(of)]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == total
    assert all(end == first for (_, end), (first, _) in itertools.pairwise(bounds))
    assert all(first % 64 == 0 and first < end for first, end in bounds)
    assert Share.of_text("2/3").bounds(1000, whole=64, what="texts") == (320, 640)


@pytest.mark.parametrize("text", ["", "3", "0/3", "4/3", "1/0", "1/2/3", "-1/2", "a/b"])
def test_what_is_no_part(text):
    with pytest.raises(InputError, match=r"--shard is '.*', but must be I/N"):
        Share.of_text(text)


def test_more_parts_than_blocks():
    with pytest.raises(
        InputError,
        match=r"but 65 texts make only 2 blocks; use 2 shards or fewer",
    ):
        Share(1, 3).bounds(65, whole=64, what="texts")
