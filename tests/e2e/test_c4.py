"""C4 through the command line, on a made-up crawl: outputs, resume, and wrong inputs."""

import collections
import gzip
import hashlib
import html.parser
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from t5x_lite.cli import main
from tests.c4.made_up_crawl import BAD_WORDS, write_crawl

ROOT = Path(__file__).resolve().parents[2]
PAGES = 300


@pytest.fixture(scope="module")
def crawl(tmp_path_factory, english_lines):
    """A directory with crawl/*.warc.wet.gz and bad.txt."""
    directory = tmp_path_factory.mktemp("c4")
    (directory / "crawl").mkdir()
    write_crawl(directory / "crawl", english_lines, pages=PAGES)
    (directory / "bad.txt").write_text(BAD_WORDS)
    return directory


@pytest.fixture
def here(crawl, tmp_path, monkeypatch):
    """An own directory beside links to the crawl and the list."""
    for name in ("crawl", "bad.txt"):
        (tmp_path / name).symlink_to(crawl / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def run(line: str) -> int:
    return main(["c4", *shlex.split(line)])


def files(directory: str) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(Path(directory).rglob("*"))
        if path.is_file()
    }


def records(directory: str, split: str) -> list[dict[str, str]]:
    return [
        json.loads(line)
        for path in sorted(Path(directory).glob(f"c4-{split}.*.json.gz"))
        for line in gzip.decompress(path.read_bytes()).splitlines()
    ]


@pytest.mark.slow
def test_a_crawl_becomes_c4(here, capsys):
    line = "--input crawl/*.wet.gz --output out --bad-words bad.txt --num-shards 2 --workers 2"
    assert run(f"{line} --cleaning.validation-modulus 5") == 0
    told = json.loads(capsys.readouterr().out)
    train, validation = records("out", "train"), records("out", "validation")
    assert told["pages"] == {"train": len(train), "validation": len(validation)}
    assert len(train) > 3 * len(validation) > 0
    for record in train + validation:
        assert sorted(record) == ["content-length", "content-type", "text", "timestamp", "url"]
        lines = record["text"].split("\n")
        assert all(line.endswith((".", "?", "!", '"')) for line in lines)
        assert all(len(line.split()) >= 5 for line in lines)
        text = record["text"].lower()
        for never in ("javascript", "lorem ipsum", "{", "privacy policy", "badword", "s&m", "[12]"):
            assert never not in text
    every = collections.Counter(
        line.strip().lower() for page in train + validation for line in page["text"].split("\n")
    )
    assert every.most_common(1)[0][1] == 1
    urls = [record["url"].split("://")[1].split("/?")[0] for record in train + validation]
    assert len(set(urls)) == len(urls)


@pytest.mark.slow
def test_manifest_and_stats_account_for_every_page(here):
    assert run("--input crawl --output out --bad-words bad.txt --workers 1") == 0
    found, stats = (
        json.loads(Path("out", name).read_text()) for name in ("manifest.json", "stats.json")
    )
    for file in found["files"]:
        content = Path("out", file["name"]).read_bytes()
        assert (file["size"], file["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())
    assert sum(file["pages"] for file in found["files"]) == sum(found["pages"].values())
    read, *_, last = stats["stages"].values()
    assert read["pages_in"] + sum(stats["damage"].values()) >= PAGES
    assert last["pages_out"] == sum(found["pages"].values())
    for stage, counts in stats["stages"].items():
        rules = stats["rules"].get(stage, {}).values()
        dropped = sum(counts.get("pages", 0) for counts in rules)
        assert counts["pages_in"] == counts.get("pages_out", 0) + dropped, stage
    for stage, rule in (
        ("read", "no_text"),
        ("length", "too_long"),
        ("url_dedup", "older"),
        ("clean", "brace"),
        ("clean", "lorem_ipsum"),
        ("language", "other_language"),
        ("bad_words", "bad_word"),
    ):
        assert stats["rules"][stage][rule]["pages"] > 0, (stage, rule)
    assert stats["damage"]
    assert len(stats["damaged_records"][0]) == 3


@pytest.mark.slow
def test_the_report_is_a_whole_page(here):
    assert run("--input crawl --output out --bad-words bad.txt --workers 1") == 0
    document = Path("out/report.html").read_text(encoding="utf-8")
    parser = html.parser.HTMLParser()
    parser.feed(document)
    parser.close()
    for words in ("The funnel", "What each rule dropped", "Samples of what was dropped"):
        assert words in document
    assert "c++ (code)" in document
    assert "<script" not in document


@pytest.mark.slow
def test_the_presets_differ(here):
    assert run("--input crawl --output released --cleaning.languages --workers 1") == 0
    assert run("--input crawl --output paper --preset paper --cleaning.languages --workers 1") == 0
    released, paper = (
        {record["url"]: record["text"] for record in records(name, "train")}
        for name in ("released", "paper")
    )
    assert released.keys() - paper.keys()  # fewer than five sentences
    assert any("[12]" in text for text in paper.values())
    assert any("..." in text for text in paper.values())


@pytest.mark.slow
def test_killed_runs_end_as_one_that_was_not(here):
    line = "c4 --input crawl --output {} --bad-words bad.txt --workers 2 --num-shards 2"
    assert main(line.format("alone").split()) == 0
    command = [sys.executable, "-m", "t5x_lite", *line.format("killed").split()]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for seconds in (2.0, 4.0, 6.0):
        process = subprocess.Popen(command, env=environment, start_new_session=True)
        time.sleep(seconds)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert files("killed") == files("alone")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("--input no.wet.gz --output out", "input no.wet.gz does not exist"),
        ("--input crawl/*.nothing --output out", "matches no file"),
        ("--input empty --output out", "empty"),
        ("--input crawl --output full", "thesis.tex"),
        ("--input crawl --output bad.txt", "bad.txt"),
        ("--input crawl --output out --bad-words none.txt", "none.txt"),
        ("--input crawl --output out --bad-words blank.txt", "blank.txt has no entries"),
        ("--input crawl --output out --preset published", "invalid choice 'published'"),
        ("--input crawl --output out --variant realnewslike", "--domains FILE"),
        ("--input crawl --output out --variant realnewslike --domains bad.txt", "bad.txt"),
        ("--input crawl --output out --variant webtextlike --urls blank.txt", "blank.txt"),
        ("--input bad.txt --output out", "bad.txt:1"),
        ("--input crawl --output out --runner NoRunner", "--runner NoRunner"),
    ],
)
def test_what_is_wrong_is_one_line(here, capfd, line, told):
    (here / "empty").mkdir()
    (here / "full").mkdir()
    (here / "full" / "thesis.tex").write_text("mine")
    (here / "blank.txt").write_text("\n \n")
    assert run(line) == 2
    found = capfd.readouterr()
    *_, message = found.err.splitlines()
    assert message.startswith("error: ")
    assert told in message
    assert found.out == ""
    assert not (here / "out").exists()
    assert [path.name for path in (here / "full").iterdir()] == ["thesis.tex"]


def test_an_output_of_another_run_is_left_alone(here, capfd):
    assert run("--input crawl --output out --cleaning.languages --workers 1") == 0
    before = files("out")
    assert run("--input crawl --output out --cleaning.languages --cleaning.min-words 7") == 2
    assert "min_words was 5, but cleaning.min_words is now 7" in capfd.readouterr().err
    assert files("out") == before


@pytest.mark.parametrize(
    "content",
    [b"", gzip.compress(b"", mtime=0), b"no crawl at all", b"WARC/1.0\r\n", b"\x1f\x8b\x08" * 99],
)
@pytest.mark.slow
def test_a_file_without_records_is_refused(here, content, capfd):
    Path("odd.wet.gz").write_bytes(content)
    assert run("--input odd.wet.gz --output out --workers 1") == 2
    assert "error: none of 1 input files" in capfd.readouterr().err
    assert not Path("out").exists()


@pytest.fixture(scope="module")
def c4_directory(tmp_path_factory, english_lines):
    """What `t5x-lite c4` writes, in its form."""
    directory = tmp_path_factory.mktemp("pages")
    for split, start, end in (("train", 0, 240), ("validation", 240, 300)):
        pages = ["\n".join(english_lines[at : at + 6]) for at in range(start, end, 6)]
        rows = [{"text": one, "timestamp": "2019-04-25", "url": f"https://a.org/{i}"}
                for i, one in enumerate(pages)]  # fmt: skip
        content = gzip.compress("\n".join(map(json.dumps, rows)).encode())
        (directory / f"c4-{split}.00000-of-00001.json.gz").write_bytes(content)
    (directory / "manifest.json").write_text("{}")
    return directory


@pytest.fixture(scope="module")
def encoder_vocabulary(tmp_path_factory, c4_directory):
    from t5x_lite.commands.texts import vocab

    where = tmp_path_factory.mktemp("vocabulary")
    return vocab([str(c4_directory)], output=str(where / "v"), size=300, encoder=True).parent


@pytest.mark.parametrize("name", ["bert", "retromae", "condenser", "cocondenser", "electra"])
def test_encoders_train_on_c4_as_it_is(c4_directory, encoder_vocabulary, name, monkeypatch):
    """Without renaming or conversion (W2 of the review): the rows of each config's own layout."""
    from t5x_lite import config
    from t5x_lite.data import batches as data_batches
    from t5x_lite.data.vocabularies.loading import load_vocabulary

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", list(sys.path))
    options = f"""--data.directory {c4_directory} --data.vocabulary {encoder_vocabulary}
        --data.batch-size 2 --data.inputs-length 32 --model.vocab-size 384"""
    experiment = config.load(f"configs/pretrain/{name}_tiny.py", options.split(), prog="train")
    vocabulary = load_vocabulary(str(encoder_vocabulary))
    batch = next(data_batches.train_batches(experiment.data, vocabulary, seed=0))
    assert all(len(value) == 2 for value in batch.values())
    assert next(data_batches.eval_batches(experiment.data, vocabulary))
