"""vocab and cache: the options that reach `run`."""

from unittest import mock

import pytest


@pytest.mark.parametrize(
    ("line", "function", "args", "kwargs"),
    [
        (
            "vocab --input a.txt b.txt --output v --size 1000",
            "texts.vocab",
            (("a.txt", "b.txt"),),
            {"output": "v", "size": 1000},
        ),
        (
            "cache configs/tiny_pretrain.py --output c",
            "caching.cache",
            (mock.ANY,),
            {"output": "c", "splits": None, "num_workers": 1, "bake": False},
        ),
        (
            "cache configs/tiny_pretrain.py --output c --splits train validation --num-workers 2 "
            "--bake --data.batch-size 2",
            "caching.cache",
            (mock.ANY,),
            {"output": "c", "splits": ("train", "validation"), "num_workers": 2, "bake": True},
        ),
    ],
)
def test_options_reach_run(check_call, line, function, args, kwargs):
    check_call(line, function, args, kwargs)
