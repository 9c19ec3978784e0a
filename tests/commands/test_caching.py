"""cache: the splits that are written and told, a mixture, and the options of Beam."""

import dataclasses
import json
import sys
from types import SimpleNamespace

import pytest

from t5x_lite.cli import main
from t5x_lite.commands import texts
from t5x_lite.commands.texts import cache
from t5x_lite.core.errors import InputError
from t5x_lite.data.cache.files import Cache
from t5x_lite.data.mixing import Mixing
from t5x_lite.report.info import described
from tests.config_files import saved


def test_cache_writes_says_what_and_verifies(tmp_path, tiny_experiment, capsys, monkeypatch):
    output = tmp_path / "c"
    cache(saved(tiny_experiment, tmp_path), output=str(output), splits=["validation"])
    told = json.loads(capsys.readouterr().out)
    assert told["cache"] == str(output)
    assert told["task"] == "tasks.text:span_corruption"
    [(split, counts)] = told["splits"].items()
    assert (split, counts["shards"]) == ("validation", 1)
    assert 0 < counts["examples"] < counts["tokens"] < counts["bytes"]
    Cache(output).verify()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    texts._print_cache(told)
    title, columns, row = capsys.readouterr().out.splitlines()
    assert title == f"{output}: tasks.text:span_corruption"
    assert columns.split() == ["split", "examples", "tokens", "shards", "bytes"]
    assert row.split()[:2] == ["validation", str(counts["examples"])]
    about = described(str(output))
    assert (about["kind"], about["task"], about["splits"]) == (
        "cache",
        told["task"],
        told["splits"],
    )
    assert about["vocabulary"]["size"] > 100
    shard = output / "validation-00000.tokens"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    with pytest.raises(InputError, match="does not fit its checksum"):
        Cache(output).verify()


def test_a_baked_cache(tmp_path, tiny_experiment):
    output = str(tmp_path / "c")
    [told] = cache(
        saved(tiny_experiment, tmp_path), output=output, splits=["validation"], bake=True
    )
    assert list(told["splits"]) == ["validation"]
    assert Cache(output).index.baked == tiny_experiment.seed


def test_each_task_of_a_mixture_has_a_cache(tmp_path, tiny_experiment, tiny_glue, capsys):
    absent = ("cola", "mrpc", "qqp", "stsb", "mnli", "qnli", "rte")
    data = dataclasses.replace(
        tiny_experiment.data,
        task="tasks.mixtures:glue",
        directory=str(tiny_glue),
        mixing=Mixing(leave_out=tuple(f"glue_{name}" for name in absent)),
    )
    experiment = dataclasses.replace(tiny_experiment, data=data)
    cache(saved(experiment, tmp_path), output=str(tmp_path / "c"), splits=["train"])
    told = json.loads(capsys.readouterr().out)
    assert told["cache"] == str(tmp_path / "c" / "glue_sst2")
    assert (told["task"], told["splits"]["train"]["examples"]) == ("tasks.glue:sst2", 40)
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["glue_sst2"]


def test_beam_gets_the_options_of_its_runner(tmp_path, tiny_experiment, monkeypatch):
    got = {}

    def write_cache(data, vocabulary, output, **options):
        got.update(options, data=data, output=output)
        raise InputError("so far")

    driver = SimpleNamespace(write_cache=write_cache)
    monkeypatch.setattr(texts, "load_driver", lambda *_, **__: driver)
    options = ["--data.batch-size", "2", "--", "--parallelism=2"]
    with pytest.raises(InputError, match="so far"):
        cache(
            saved(tiny_experiment, tmp_path),
            options,
            output=str(tmp_path / "c"),
            runner="FlinkRunner",
        )
    assert got == {
        "data": dataclasses.replace(tiny_experiment.data, batch_size=2),
        "output": str(tmp_path / "c"),
        "runner": "FlinkRunner",
        "options": ("--parallelism=2",),
        "splits": None,
        "seed": tiny_experiment.seed,
    }


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("--runner FlinkRunner --bake", "--bake is supported only with --runner local"),
        (
            "--runner FlinkRunner --num-workers 2",
            "--num-workers is supported only with --runner local",
        ),
        ("-- --parallelism=2", "options after -- are for Apache Beam, but --runner is local"),
        ("--runner FlinkRunner --data.batch-sise 2 -- --x=1", "did you mean --data.batch-size?"),
    ],
)
def test_what_is_wrong_is_one_line(capsys, line, told):
    assert main(f"cache configs/tiny_pretrain.py --output c {line}".split()) == 2
    [message] = capsys.readouterr().err.splitlines()
    assert message.startswith("error: ")
    assert told in message
