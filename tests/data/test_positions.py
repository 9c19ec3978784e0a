import dataclasses

import pytest

from t5x_lite import layouts
from t5x_lite.core.errors import InputError
from t5x_lite.data.config import Bucketed, Data
from t5x_lite.data.sources import (
    FROM_CACHE,
    ON_THE_FLY,
    check_identity,
    identity_of,
    seal,
    share_of_batch,
    unseal,
)


def test_what_was_sealed_is_found_again():
    assert unseal(FROM_CACHE, seal(FROM_CACHE, b"content")) == b"content"


@pytest.mark.parametrize("place", [5, 30, -1])
def test_a_changed_byte_is_damage(place):
    state = bytearray(seal(FROM_CACHE, b"content"))
    state[place] ^= 1
    with pytest.raises(InputError, match="the saved data position is damaged"):
        unseal(FROM_CACHE, bytes(state))


def test_a_truncated_position_is_damage():
    with pytest.raises(InputError, match="damaged"):
        unseal(ON_THE_FLY, seal(ON_THE_FLY, b"content")[:-3])


def test_the_other_kind_is_named():
    with pytest.raises(InputError, match=r"is from a cache; set data\.cache or start a new run"):
        unseal(ON_THE_FLY, seal(FROM_CACHE, b""))
    with pytest.raises(
        InputError, match=r"is from a task without a cache; unset data\.cache or start"
    ):
        unseal(FROM_CACHE, seal(ON_THE_FLY, b""))


def test_all_that_differs_is_named():
    check_identity({"seed": 1}, {"seed": 1})
    with pytest.raises(
        InputError, match=r"other settings: pack True \(now None\), seed 1 \(now 2\)$"
    ):
        check_identity({"seed": 1, "pack": True}, {"seed": 2})


def test_the_rows_of_a_process():
    data = Data(task="a:b", vocabulary="", batch_size=12)
    assert [share_of_batch(data, count) for count in (1, 3, 12)] == [12, 4, 1]
    with pytest.raises(InputError, match="batch_size 12 cannot be divided among 5 processes"):
        share_of_batch(data, 5)


def test_what_makes_two_positions_the_same():
    data = Data(task="a:b", vocabulary="v", directory="d")
    ended = dataclasses.replace(data, final_sentinel=True)
    assert identity_of(ended, seed=3) == {**identity_of(data, seed=3), "final_sentinel": True}
    assert identity_of(data, seed=3) == {
        "layout": "seq2seq",
        "batch_size": 128,
        "inputs_length": 512,
        "targets_length": 114,
        "pack": True,
        "shuffle": True,
        "seed": 3,
    }
    worded = identity_of(Data(task="a:b", vocabulary="v", template="{a}", prefix=""), seed=3)
    assert (worded["template"], worded["prefix"]) == ("{a}", "")
    groups = Data(task="a:b", vocabulary="v", layout=layouts.Groups(negatives=2), pack=False)
    found = identity_of(groups, seed=3)
    assert (found["layout"], found["negatives"], found["positives"]) == ("groups", 2, "each")


def test_batches_of_several_shapes():
    sizes = {"inputs_length": 8, "batch_size": 2}
    data = Data(
        task="a:b",
        vocabulary="v",
        layout=layouts.Encoder(),
        batches=Bucketed({4: 6, 8: 2}),
        pack=False,
        **sizes,
    )
    assert identity_of(data, seed=3).items() >= {**sizes, "batches": [[4, 6], [8, 2]]}.items()
    assert share_of_batch(data, 2) == 1
    message = "data.batches of 2 rows of 8 tokens cannot be divided among 3 processes"
    with pytest.raises(InputError, match=message):
        share_of_batch(data, 3)
