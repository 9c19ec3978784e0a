import gzip
import os

import pytest

from t5x_lite.c4.pages import Input, expand_inputs
from t5x_lite.core.errors import InputError
from tests.fake_bucket import bucket  # noqa: F401 (a fixture)


@pytest.fixture
def crawl(tmp_path, monkeypatch):
    """A directory with files, in which the test runs."""
    for name in ("a.warc.wet.gz", "b.wet", "deep/c.warc.gz", "deep/d.warc", "notes.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * len(name))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def names(directory, *inputs: str, **options) -> list[str]:
    found = expand_inputs(list(inputs), **options)
    return [os.path.relpath(file.path, directory) for file in found]


def test_files_globs_and_directories(crawl):
    assert expand_inputs(["b.wet"]) == [Input(path=str(crawl / "b.wet"), size=5)]
    every = ["a.warc.wet.gz", "b.wet", "deep/c.warc.gz", "deep/d.warc"]
    assert names(crawl, ".") == every
    assert names(crawl, "deep", "b.wet", "a.warc.wet.gz", str(crawl / "b.wet")) == every
    assert names(crawl, "*.wet*") == ["a.warc.wet.gz", "b.wet"]
    assert names(crawl, "**/*.warc*") == ["a.warc.wet.gz", "deep/c.warc.gz", "deep/d.warc"]
    assert names(crawl, "notes.md") == ["notes.md"]


def test_lists_of_paths(crawl):
    lines = f"# a comment\n\nc.warc.gz\n{crawl}/b.wet\n"
    (crawl / "deep/wet.paths").write_text(lines)
    assert names(crawl, "deep/wet.paths") == ["b.wet", "deep/c.warc.gz"]
    (crawl / "wet.paths.gz").write_bytes(gzip.compress(lines.encode()))
    assert names(crawl, "wet.paths.gz", base=str(crawl / "deep")) == ["b.wet", "deep/c.warc.gz"]


def test_buckets(bucket, crawl):  # noqa: F811
    for name in ("crawl/a.wet.gz", "crawl/b/c.warc.gz"):
        (bucket / name).parent.mkdir(parents=True, exist_ok=True)
        (bucket / name).write_bytes(b"12345")
    assert expand_inputs(["gs://bucket/crawl"]) == [
        Input(path="gs://bucket/crawl/a.wet.gz", size=5),
        Input(path="gs://bucket/crawl/b/c.warc.gz", size=5),
    ]
    (crawl / "list.txt").write_text("crawl/a.wet.gz\n")
    assert expand_inputs(["list.txt"], base="gs://bucket") == [
        Input(path="gs://bucket/crawl/a.wet.gz", size=5)
    ]


@pytest.mark.parametrize(
    ("inputs", "error"),
    [
        ([], "no input was given; give WET or WARC files, globs, directories or lists of paths"),
        ([" "], "an input is empty; give a file, a glob, a directory or a list of paths"),
        (["none.wet"], "input none.wet does not exist"),
        (["*.none"], "input *.none matches no file"),
        (
            ["empty"],
            "input empty is a directory without files that end in .warc, .wet, .warc.gz, .wet.gz",
        ),
        (["empty.txt"], "input empty.txt is a list of paths, but contains no path"),
        (["wet.txt"], "input wet.txt: line 1 is not a path; if the input is a WET"),
        (["bad.paths.gz"], "input bad.paths.gz cannot be read (Compressed file ended before"),
        (
            ["bytes.list"],
            "input bytes.list is not a list of paths; a WET or WARC file must not end",
        ),
        (["http://a.com/b"], "URL http://a.com/b has an unknown scheme; use gs:// or s3://"),
    ],
)
def test_what_names_no_file(crawl, inputs, error):
    (crawl / "empty").mkdir()
    (crawl / "empty.txt").write_text("# nothing\n")
    (crawl / "wet.txt").write_text("WARC/1.0\r\n")
    (crawl / "bad.paths.gz").write_bytes(gzip.compress(b"a" * 100)[:-9])
    (crawl / "bytes.list").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError) as raised:
        expand_inputs(inputs)
    assert str(raised.value).startswith(error)


def test_a_listed_file_that_is_not_there(crawl):
    (crawl / "wet.paths").write_text("b.wet\nnone.wet\n")
    with pytest.raises(InputError) as raised:
        expand_inputs(["wet.paths"])
    assert str(raised.value) == (
        f"wet.paths:2: file {crawl}/none.wet does not exist; paths are relative to the "
        "directory of the list, or to --base"
    )
