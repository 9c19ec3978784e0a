"""c4: rules and options, lists, shards, the report, the summary, and what is refused."""

import dataclasses
import gzip
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from t5x_lite.c4.config import preset
from t5x_lite.c4.pages import Input, Tally
from t5x_lite.cli import main
from t5x_lite.commands import texts as command
from t5x_lite.core.errors import InputError
from tests.c4.wet_files import members, wet_record

TEXT = "\n".join(f"This is line number {number} of the page." for number in range(5))
RULES = ["--cleaning.languages"]
"""No language is identified."""


@pytest.fixture
def wet(tmp_path):
    """A file of two pages, of which one is kept."""
    path = tmp_path / "a.warc.wet.gz"
    path.write_bytes(
        members(wet_record("http://a.example/", TEXT), wet_record("http://b.example/", "Short."))
    )
    return str(path)


def run(wet, output, overrides=RULES, *, workers=1, **options):
    command.c4([wet], overrides, output=str(output), workers=workers, **options)


def test_a_run_leaves_shards_a_report_and_a_manifest(wet, tmp_path, capsys, caplog):
    run(wet, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "c4-train.00000-of-00001.json.gz",
        "c4-validation.00000-of-00001.json.gz",
        "manifest.json",
        "report.html",
        "stats.json",
    ]
    told = capsys.readouterr()
    assert json.loads(told.out) == {
        "output": str(tmp_path / "out"),
        "pages_read": 2,
        "pages_kept": 1,
        "pages": {"train": 1},
        "bytes": len(TEXT),
        "damaged_records": 0,
        "report": str(tmp_path / "out" / "report.html"),
    }
    assert "reading files  1/1" in told.err
    assert "no --bad-words FILE" in caplog.text
    stats = json.loads((tmp_path / "out" / "stats.json").read_text())
    assert (stats["preset"], stats["variant"]) == ("released", "en")
    assert stats["cleaning"]["min_words"] == 5
    assert "punkt" in stats["sentences"]
    assert stats["rules"]["clean"]["too_few_words"]["lines"] == 1


def test_rules_are_those_of_the_preset_with_the_changes_of_the_line(wet, tmp_path, capsys):
    (tmp_path / "domains.json").write_text('{"a.example": true}')
    line = f"c4 --input {wet} --output {tmp_path}/out --variant realnewslike --preset paper"
    line += f" --domains {tmp_path}/domains.json --cleaning.languages --cleaning.end-marks . !"
    assert main([*line.split(), "--workers", "1", "--num-shards", "2", "--memory", "0.5"]) == 0
    assert json.loads(capsys.readouterr().out)["pages_read"] == 2
    rules = json.loads((tmp_path / "out" / "stats.json").read_text())["cleaning"]
    assert rules == json.loads(
        json.dumps(
            dataclasses.asdict(
                dataclasses.replace(
                    preset("paper", "realnewslike"),
                    domains=f"{tmp_path}/domains.json",
                    languages=(),
                    end_marks=(".", "!"),
                )
            )
        )
    )
    assert len(list((tmp_path / "out").glob("c4-train.*-of-00002.json.gz"))) == 2


def test_a_run_that_is_complete_is_left_as_it_is(wet, tmp_path, capsys, monkeypatch):
    run(wet, tmp_path / "out")
    first = capsys.readouterr().out
    before = {path: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    run(wet, tmp_path / "out")
    assert capsys.readouterr().out == first
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    run(wet, tmp_path / "out")
    lines = dict(re.findall(r"^(\w.*?)  +(.*)$", capsys.readouterr().out, re.MULTILINE))
    assert (lines["pages read"], lines["pages of train"]) == ("2", "1")
    assert {path: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_the_report_is_there_before_the_manifest(wet, tmp_path, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("t5x_lite.c4.local.write_manifest", killed)
    with pytest.raises(KeyboardInterrupt):
        run(wet, tmp_path / "out")
    assert (tmp_path / "out" / "report.html").exists()
    assert not (tmp_path / "out" / "manifest.json").exists()
    monkeypatch.undo()
    run(wet, tmp_path / "out")
    assert (tmp_path / "out" / "manifest.json").exists()


@pytest.mark.parametrize(
    ("variant", "told"), [("realnewslike", "--domains FILE"), ("webtextlike", "--urls FILE")]
)
def test_a_variant_without_its_list_is_refused(wet, tmp_path, variant, told):
    with pytest.raises(InputError, match=told):
        run(wet, tmp_path / "out", variant=variant)
    assert not (tmp_path / "out").exists()


def test_an_output_without_a_page_is_told_of(wet, tmp_path, caplog):
    run(wet, tmp_path / "out", [*RULES, "--cleaning.min-words", "99"])
    page = tmp_path / "out" / "report.html"
    assert f"dropped every page; see the counts by reason in {page}" in caplog.text


def test_beam_gets_the_options_of_its_runner(wet, tmp_path, monkeypatch, capsys):
    got = {}

    def beam_run(files, output, cleaning, **kwargs):
        got.update(kwargs, files=files, output=output, cleaning=cleaning)
        return Tally()

    driver = SimpleNamespace(run=beam_run)
    monkeypatch.setattr(command, "load_driver", lambda *_, **__: driver)
    run(
        wet,
        tmp_path / "out",
        [*RULES, "--", "--parallelism=2", "--experiments=a", "--experiments=b"],
        workers=None,
        preset="paper",
        bad_words="list.txt",
        runner="FlinkRunner",
        array_record=True,
        num_shards=7,
    )
    assert [file.path for file in got["files"]] == [wet]
    assert got["cleaning"] == dataclasses.replace(
        preset("paper"), languages=(), bad_words="list.txt"
    )
    assert got["runner"] == "FlinkRunner"
    assert got["options"] == ("--parallelism=2", "--experiments=a", "--experiments=b")
    assert (got["num_shards"], got["kinds"]) == (7, ("json", "array_record"))
    assert json.loads(capsys.readouterr().out)["pages_read"] == 0


def test_beam_that_is_missing_is_named(wet, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    monkeypatch.delitem(sys.modules, "t5x_lite.c4.beam", raising=False)
    monkeypatch.delattr("t5x_lite.c4.beam", raising=False)
    with pytest.raises(InputError, match=r"missing; run pip install .*\[c4,beam\]"):
        run(wet, tmp_path / "out", workers=None, runner="FlinkRunner")


@pytest.mark.parametrize(
    ("size", "shards"), [(0, 1), (1 << 28, 1), (10 << 28, 10), (1 << 50, 1024)]
)
def test_shards_go_by_the_size_of_the_input(size, shards):
    assert command.default_shards([Input(path="a", size=size)]) == shards


def test_the_reference_names_every_rule():
    page = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "c4_rules.md").read_text()
    fields = [field.name for field in dataclasses.fields(preset())]
    assert [name for name in fields if f"`{name}`" not in page] == []


@pytest.mark.parametrize("name", ["a.txt.gz", "a.html", "empty.warc.wet.gz", "a.warc"])
def test_inputs_without_a_record_are_refused(tmp_path, name):
    content = {"a.txt.gz": gzip.compress(b"text"), "a.html": b"<html>", "a.warc": b"text\n" * 99}
    path = tmp_path / name
    path.write_bytes(content.get(name, b""))
    files = str(path) if name != "a.txt.gz" else listed(path)
    with pytest.raises(
        InputError, match=f"none of 1 input files, such as .*{name}, has a WARC record"
    ):
        run(files, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def listed(path):
    """A list of paths that names a file, since a name in .txt.gz is a list by itself."""
    paths = path.with_name("wet.paths")
    paths.write_text(str(path))
    return str(paths)


def test_one_file_with_a_record_is_enough(wet, tmp_path):
    (tmp_path / "0.warc.gz").write_bytes(b"no archive")
    command.c4([str(tmp_path / "0.warc.gz"), wet], RULES, output=str(tmp_path / "o"), workers=1)
    assert json.loads((tmp_path / "o" / "manifest.json").read_text())


def test_an_empty_validation_split_is_told_with_an_option(caplog):
    command._warn_of_empty_validation({"train": 300, "fr": 40, "fr-validation": 1}, 1000)
    assert [record.getMessage() for record in caplog.records] == [
        "split validation is empty, because it gets 1 in 1000 pages (chosen by URL) and only 300 "
        "pages were kept; run again with --cleaning.validation-modulus 30 and a new --output, or "
        "train with --evaluation.loss False"
    ]


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
        (
            "--input a --output o --cleaning.min-words 0",
            "cleaning.min_words must be at least 1: got 0",
        ),
        ("--input a --output o --workers 0", "--workers must be at least 1, got 0"),
        ("--input a --output o --num-shards 0", "--num-shards must be at least 1, got 0"),
        ("--input a --output o --memory 0", "--memory must be in (0, 1048576), got 0.0"),
        ("--input a --output o --memory nan", "--memory must be in (0, 1048576), got nan"),
        ("--input a --output o stray --workers 2", "stray"),
        ("--input a --output o -- --project=P", "set --runner to an Apache Beam runner"),
        (
            "--input a --output o --runner FlinkRunner --workers 2",
            "--workers is supported only with --runner local",
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
