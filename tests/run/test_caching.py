import dataclasses
import json
import sys
from types import SimpleNamespace

import pytest

from t5x_lite.data.rates import Mixing
from t5x_lite.errors import InputError
from t5x_lite.run import caching
from t5x_lite.run.caching import cache, verify
from t5x_lite.run.info import described


def test_cache_writes_says_what_and_verifies(tmp_path, tiny_experiment, capsys, monkeypatch):
    output = tmp_path / "c"
    cache(tiny_experiment, output=str(output), splits=["validation"])
    told = json.loads(capsys.readouterr().out)
    assert told["cache"] == str(output)
    assert told["task"] == "tasks.text:span_corruption"
    [(split, counts)] = told["splits"].items()
    assert (split, counts["shards"]) == ("validation", 1)
    assert 0 < counts["examples"] < counts["tokens"] < counts["bytes"]
    verify(str(output))
    assert json.loads(capsys.readouterr().out) == told
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    verify(str(output))
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
    shard = output / "validation-00000.array_record"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    with pytest.raises(InputError, match="does not fit its checksum"):
        verify(str(output))


def test_each_task_of_a_mixture_has_a_cache(tmp_path, tiny_experiment, tiny_glue, capsys):
    absent = ("cola", "mrpc", "qqp", "stsb", "mnli", "qnli", "rte")
    data = dataclasses.replace(
        tiny_experiment.data,
        task="tasks.mixtures:glue",
        directory=str(tiny_glue),
        mixing=Mixing(leave_out=tuple(f"glue_{name}" for name in absent)),
    )
    experiment = dataclasses.replace(tiny_experiment, data=data)
    cache(experiment, output=str(tmp_path / "c"), splits=["train"])
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
    monkeypatch.setattr(caching, "load_driver", lambda *_, **__: driver)
    options = {"runner": "FlinkRunner", "beam_options": ("--parallelism=2",)}
    with pytest.raises(InputError, match="so far"):
        cache(tiny_experiment, output=str(tmp_path / "c"), **options)
    assert got == {
        "data": tiny_experiment.data,
        "output": str(tmp_path / "c"),
        "runner": "FlinkRunner",
        "options": ("--parallelism=2",),
        "splits": None,
        "seed": tiny_experiment.seed,
    }
    with pytest.raises(InputError, match="neither --bake nor --num-workers"):
        cache(tiny_experiment, output=str(tmp_path / "c"), bake=True, **options)
