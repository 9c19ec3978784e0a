"""vocab and cache: the options that reach `run`."""

from unittest import mock

import pytest

from t5x_lite.cli import main

DEFAULTS = {
    "output": "c",
    "splits": None,
    "num_workers": 1,
    "bake": False,
    "runner": "local",
    "beam_options": (),
}


@pytest.mark.parametrize(
    ("line", "function", "args", "kwargs"),
    [
        (
            "vocab --input a.txt b.txt --output v --size 1000",
            "texts.vocab",
            (("a.txt", "b.txt"),),
            {
                "output": "v",
                "size": 1000,
                "ascii": True,
                "alpha": None,
                "text": "{text}",
                "encoder": False,
                "character_coverage": None,
                "seed": 0,
            },
        ),
        (
            "vocab --input a.txt=10 b.txt=1 --output v --size 1000 --no-ascii --seed 3 "
            "--alpha 0.3 --encoder",
            "texts.vocab",
            (("a.txt=10", "b.txt=1"),),
            {
                "output": "v",
                "size": 1000,
                "ascii": False,
                "alpha": 0.3,
                "text": "{text}",
                "encoder": True,
                "character_coverage": None,
                "seed": 3,
            },
        ),
        (
            "cache configs/tiny_pretrain.py --output c",
            "caching.cache",
            (mock.ANY,),
            DEFAULTS,
        ),
        (
            "cache configs/tiny_pretrain.py --output c --splits train validation --num-workers 2 "
            "--bake --data.batch-size 2",
            "caching.cache",
            (mock.ANY,),
            DEFAULTS | {"splits": ("train", "validation"), "num_workers": 2, "bake": True},
        ),
        (
            "cache configs/tiny_pretrain.py --output c --runner FlinkRunner --data.batch-size 2 "
            "-- --flink_master=host:8081 --parallelism 8",
            "caching.cache",
            (mock.ANY,),
            DEFAULTS
            | {
                "runner": "FlinkRunner",
                "beam_options": ("--flink_master=host:8081", "--parallelism", "8"),
            },
        ),
    ],
)
def test_options_reach_run(check_call, line, function, args, kwargs):
    check_call(line, function, args, kwargs)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("--runner FlinkRunner --bake", "--bake is for --runner local"),
        ("--runner FlinkRunner --num-workers 2", "--num-workers is for --runner local"),
        ("-- --parallelism=2", "options after -- are for Apache Beam; choose a --runner"),
        ("--runner FlinkRunner --data.batch-sise 2 -- --x=1", "did you mean --data.batch-size?"),
    ],
)
def test_what_is_wrong_is_one_line(capsys, line, told):
    assert main(f"cache configs/tiny_pretrain.py --output c {line}".split()) == 2
    [message] = capsys.readouterr().err.splitlines()
    assert message.startswith("error: ")
    assert told in message
