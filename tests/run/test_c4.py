"""What `t5x-lite c4` does around the drivers: lists, shards, the report, the summary."""

import dataclasses
import gzip
import json
import re
import sys
from pathlib import Path

import pytest

from t5x_lite.c4.config import preset
from t5x_lite.c4.inputs import Input
from t5x_lite.c4.pages import Tally
from t5x_lite.errors import InputError
from t5x_lite.run import c4 as command
from tests.c4.wet_files import members, wet_record

TEXT = "\n".join(f"This is line number {number} of the page." for number in range(5))
RULES = dataclasses.replace(preset(), languages=())


@pytest.fixture
def wet(tmp_path):
    """A file of two pages, of which one is kept."""
    path = tmp_path / "a.warc.wet.gz"
    path.write_bytes(
        members(wet_record("http://a.example/", TEXT), wet_record("http://b.example/", "Short."))
    )
    return str(path)


def run(wet, output, **changes):
    command.c4([wet], **{"output": str(output), "cleaning": RULES, "workers": 1, **changes})


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

    monkeypatch.setattr(command.local, "write_manifest", killed)
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
    run(wet, tmp_path / "out", cleaning=dataclasses.replace(RULES, min_words=99))
    assert f"no page was kept; {tmp_path / 'out' / 'report.html'} says why" in caplog.text


def test_beam_gets_the_options_of_its_runner(wet, tmp_path, monkeypatch, capsys):
    got = {}

    def beam_run(files, output, cleaning, **kwargs):
        got.update(kwargs, files=files, output=output, cleaning=cleaning)
        return Tally()

    monkeypatch.setattr(command, "_on_beam", lambda runner: beam_run)
    run(
        wet,
        tmp_path / "out",
        runner="FlinkRunner",
        beam_options=("--parallelism=2",),
        array_record=True,
        num_shards=7,
    )
    assert [file.path for file in got["files"]] == [wet]
    assert (got["runner"], got["options"]) == ("FlinkRunner", ("--parallelism=2",))
    assert (got["num_shards"], got["kinds"]) == (7, ("json", "array_record"))
    assert json.loads(capsys.readouterr().out)["pages_read"] == 0


def test_beam_that_is_missing_is_named(wet, tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "apache_beam", None)
    monkeypatch.delitem(sys.modules, "t5x_lite.c4.beam", raising=False)
    monkeypatch.delattr("t5x_lite.c4.beam", raising=False)
    with pytest.raises(InputError, match=r"missing: pip install .*\[c4,beam\]"):
        run(wet, tmp_path / "out", runner="FlinkRunner")


@pytest.mark.parametrize(
    ("size", "shards"), [(0, 1), (1 << 28, 1), (10 << 28, 10), (1 << 50, 1024)]
)
def test_shards_go_by_the_size_of_the_input(size, shards):
    assert command.default_shards([Input(path="a", size=size)]) == shards


def test_the_guide_names_every_rule():
    guide = (Path(__file__).resolve().parents[2] / "docs" / "guides" / "c4.md").read_text()
    fields = [field.name for field in dataclasses.fields(RULES)]
    assert [name for name in fields if f"`{name}`" not in guide] == []


@pytest.mark.parametrize("name", ["a.txt.gz", "a.html", "empty.warc.wet.gz", "a.warc"])
def test_inputs_without_a_record_are_refused(tmp_path, name):
    content = {"a.txt.gz": gzip.compress(b"text"), "a.html": b"<html>", "a.warc": b"text\n" * 99}
    path = tmp_path / name
    path.write_bytes(content.get(name, b""))
    files = str(path) if name != "a.txt.gz" else listed(path)
    with pytest.raises(InputError, match=f"no WARC record in 1 input files, such as .*{name}"):
        run(files, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def listed(path):
    """A list of paths that names a file, since a name in .txt.gz is a list by itself."""
    paths = path.with_name("wet.paths")
    paths.write_text(str(path))
    return str(paths)


def test_one_file_with_a_record_is_enough(wet, tmp_path):
    (tmp_path / "0.warc.gz").write_bytes(b"no archive")
    command.c4(
        [str(tmp_path / "0.warc.gz"), wet], output=str(tmp_path / "o"), cleaning=RULES, workers=1
    )
    assert json.loads((tmp_path / "o" / "manifest.json").read_text())


def test_an_empty_validation_split_is_told_with_an_option(caplog):
    command._warn_of_empty_validation({"train": 300, "fr": 40, "fr-validation": 1}, 1000)
    assert [record.getMessage() for record in caplog.records] == [
        "validation has no page (1 in 1000 of 300 pages, by URL); for held-out pages, run again "
        "with --cleaning.validation-modulus 30 and a new --output, or train with "
        "--evaluation.loss False"
    ]
