"""c4: the options that reach `run`, the rules among them, and those that are refused."""

import dataclasses

import pytest

from t5x_lite.c4.config import preset
from t5x_lite.cli import main

DEFAULTS = {
    "output": "o",
    "cleaning": preset(),
    "preset": "released",
    "variant": "en",
    "base": "",
    "num_shards": None,
    "array_record": False,
    "workers": None,
    "memory": 2.0,
    "runner": "local",
    "beam_options": (),
}


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        ("", {}),
        (
            "--preset paper --cleaning.min-words 7 --cleaning.end-marks . ! --bad-words list.txt "
            "--cleaning.drop-braces False",
            {
                "preset": "paper",
                "cleaning": dataclasses.replace(
                    preset("paper"),
                    min_words=7,
                    end_marks=(".", "!"),
                    bad_words="list.txt",
                    drop_braces=False,
                ),
            },
        ),
        (
            "--variant realnewslike --domains d.json --base s3://crawl --num-shards 8 "
            "--array-record --workers 2 --memory 0.5",
            {
                "variant": "realnewslike",
                "cleaning": dataclasses.replace(preset(), domains="d.json"),
                "base": "s3://crawl",
                "num_shards": 8,
                "array_record": True,
                "workers": 2,
                "memory": 0.5,
            },
        ),
        (
            "--runner FlinkRunner --cleaning.languages -- --flink_master=host:8081 --parallelism 8 "
            "--experiments=a --experiments=b",
            {
                "runner": "FlinkRunner",
                "cleaning": dataclasses.replace(preset(), languages=()),
                "beam_options": (
                    "--flink_master=host:8081",
                    "--parallelism",
                    "8",
                    "--experiments=a",
                    "--experiments=b",
                ),
            },
        ),
    ],
)
def test_options_reach_run(check_call, line, changed):
    check_call(f"c4 --input a b --output o {line}", "c4.c4", (("a", "b"),), DEFAULTS | changed)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("--output o", "missing --input"),
        ("--input a", "missing --output"),
        ("--input a --output o --preset papr", "invalid choice 'papr'"),
        ("--input a --output o --variant de", "invalid choice 'de'"),
        ("--input a --output o --bad-word f", "did you mean --bad-words?"),
        ("--input a --output o --cleaning.min-word 3", "did you mean --cleaning.min-words?"),
        ("--input a --output o --cleaning.min-words few", "cleaning.min-words"),
        ("--input a --output o --cleaning.min-words 0", "must be at least 1; got 0"),
        ("--input a --output o --workers 0", "--workers must be at least 1, got 0"),
        ("--input a --output o --num-shards 0", "--num-shards must be at least 1, got 0"),
        ("--input a --output o --memory 0", "--memory must be a number of GiB above 0, got 0.0"),
        ("--input a --output o --memory nan", "--memory must be a number of GiB above 0, got nan"),
        ("--input a --output o stray --workers 2", "stray"),
        ("--input a --output o -- --project=P", "choose a --runner"),
        (
            "--input a --output o --runner FlinkRunner --workers 2",
            "--workers is for --runner local",
        ),
    ],
)
def test_what_is_wrong_is_one_line(capsys, line, told):
    assert main(f"c4 {line}".split()) == 2
    [message] = capsys.readouterr().err.splitlines()
    assert message.startswith("error: ")
    assert told in message


def test_help_names_the_presets(capsys):
    with pytest.raises(SystemExit) as end:
        main(["c4", "--help"])
    assert end.value.code == 0
    told = capsys.readouterr().out
    assert "{released,paper}" in told
    assert "--cleaning.min-words" in told
