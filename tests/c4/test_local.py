import dataclasses
import errno
import gzip
import hashlib
import json
import os
import pathlib
import random
import subprocess
import sys
import time

import pytest

from t5x_lite.c4 import local, output
from t5x_lite.c4 import pages as reading
from t5x_lite.c4.config import Cleaning, paper
from t5x_lite.c4.dedup import Rules, line_key
from t5x_lite.c4.local import bucket_count, run
from t5x_lite.c4.pages import (
    Input,
    Page,
    Tally,
    expand_inputs,
    normalize_url,
    page_rank,
    read_pages,
)
from t5x_lite.core.errors import InputError
from tests.c4.crawls import write_crawl

pytest.importorskip("duckdb")

RELEASED = Cleaning(languages=(), validation_modulus=10)
PAPER = dataclasses.replace(paper(), languages=(), validation_modulus=10)


def digests(output: pathlib.Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(output.iterdir())
    }


def written(output: pathlib.Path) -> dict[str, list[str]]:
    """URLs and texts, by file."""
    return {
        path.name: [
            (found["url"], found["text"])
            for line in gzip.open(path).read().splitlines()
            for found in [json.loads(line)]
        ]
        for path in sorted(output.glob("*.json.gz"))
    }


def plain(paths: list[pathlib.Path], cleaning: Cleaning) -> list[tuple[str, str]]:
    """The same by dictionaries: URL and text of every page that is kept."""
    rules, tally = Rules(cleaning), Tally()
    pages = [page for path in paths for page in read_pages(str(path), cleaning, tally)]
    if cleaning.dedup_urls:
        by_url: dict[str, list[Page]] = {}
        for page in pages:
            by_url.setdefault(normalize_url(page.url), []).append(page)
        pages = [rules.newest(same, tally) for same in by_url.values()]
    cleaned = [kept for page in pages if (kept := rules.after_urls(page, tally))]
    cleaned.sort(key=page_rank)
    owner: dict[bytes, int] = {}
    for number, page in enumerate(cleaned):
        for key in rules.keys(page):
            owner.setdefault(key, number)
    kept = []
    for number, page in enumerate(cleaned):
        lost = {at for at, key in enumerate(rules.keys(page)) if owner[key] != number}
        left = rules.remove(page, lost, tally)
        if left is not None:
            kept.append((left.url, left.text))
    return sorted(kept)


@pytest.mark.parametrize("cleaning", [RELEASED, PAPER], ids=["released", "paper"])
def test_equal_to_plain_python(tmp_path, cleaning):
    paths = write_crawl(tmp_path / "crawl")
    tally = run(
        expand_inputs([str(tmp_path / "crawl")]), tmp_path / "c4", cleaning, workers=1, num_shards=3
    )
    found = written(tmp_path / "c4")
    assert sorted(found) == [
        "c4-train.00000-of-00003.json.gz",
        "c4-train.00001-of-00003.json.gz",
        "c4-train.00002-of-00003.json.gz",
        "c4-validation.00000-of-00001.json.gz",
    ]
    pages = sorted(page for part in found.values() for page in part)
    assert pages == plain(paths, cleaning)
    assert len(pages) > 20
    counted = {split: counts["pages"] for split, counts in tally.splits.items()}
    assert sum(counted.values()) == len(pages)
    assert tally.damage == {
        "the record is lost: truncated gzip member": 1,
        "truncated gzip member": 1,
    }
    if cleaning.dedup == "lines":
        lines = [line_key(line) for _, text in pages for line in text.split("\n")]
        assert len(lines) == len(set(lines))


def test_manifest_and_repetition(tmp_path):
    write_crawl(tmp_path / "crawl", files=2, pages=10)
    inputs, output = expand_inputs([str(tmp_path / "crawl")]), tmp_path / "c4"
    seen, reported = [], []
    tally = run(
        inputs,
        output,
        RELEASED,
        workers=1,
        num_shards=2,
        progress=lambda *stage: seen.append(stage),
        report=lambda tally: reported.append((tally, (output / "manifest.json").exists())),
    )
    assert [stage for stage, done, total in seen if done == total] == [
        "read",
        "clean",
        "duplicates",
        "filter",
        "write",
    ]
    assert [there for _, there in reported] == [False]
    found = json.loads((output / "manifest.json").read_bytes())
    assert {file["name"]: file["sha256"] for file in found["files"]} == {
        name: digest for name, digest in digests(output).items() if name.startswith("c4-")
    }
    assert found["run"]["sentences"].startswith("nltk ")
    assert found["pages"] == {split: counts["pages"] for split, counts in tally.splits.items()}
    assert not (output / ".work").exists()
    before = digests(output)
    (output / ".work").mkdir()  # killed while it was being removed
    again = run(inputs, output, RELEASED, workers=1, num_shards=2, report=reported.append)
    assert again.stages == tally.stages
    assert len(reported) == 1
    assert digests(output) == before
    with pytest.raises(
        InputError, match=r"another run, in which num_shards was 2, but num_shards is now 3"
    ):
        run(inputs, output, RELEASED, workers=1, num_shards=3)
    with pytest.raises(InputError, match=r"another run, in which cleaning.min_words was 5"):
        run(inputs, output, dataclasses.replace(RELEASED, min_words=4), workers=1, num_shards=2)


def test_inputs_without_a_page(tmp_path):
    (tmp_path / "a.wet").touch()
    tally = run(
        expand_inputs([str(tmp_path / "a.wet")]), tmp_path / "c4", RELEASED, workers=1, num_shards=1
    )
    assert tally.damage == {"empty file": 1}
    assert [part for part in written(tmp_path / "c4").values() if part] == []


def test_no_dedup(tmp_path):
    paths = write_crawl(tmp_path / "crawl", files=1, pages=5)
    cleaning = dataclasses.replace(RELEASED, dedup="none", min_sentences_after_dedup=0)
    run(
        expand_inputs([str(tmp_path / "crawl")]), tmp_path / "c4", cleaning, workers=1, num_shards=1
    )
    found = sorted(page for part in written(tmp_path / "c4").values() for page in part)
    assert found == plain(paths, cleaning)


def test_a_full_disk_is_one_error_and_the_run_goes_on(tmp_path, monkeypatch):
    write_crawl(tmp_path / "crawl", files=2, pages=10)
    inputs = expand_inputs([str(tmp_path / "crawl")])
    run(inputs, tmp_path / "whole", RELEASED, workers=1, num_shards=2)
    for stage in ("read_file", "clean_bucket", "filter_bucket", "write_one"):
        function, calls = getattr(local, stage), []

        def full(plan, task, function=function, calls=calls):
            calls.append(task)
            if len(calls) == 2:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            function(plan, task)

        with monkeypatch.context() as context:
            context.setattr(local, stage, full)
            with pytest.raises(InputError) as raised:
                run(inputs, tmp_path / "c4", RELEASED, workers=1, num_shards=2)
        assert str(raised.value) == (
            f"--output {tmp_path / 'c4'} cannot be written (No space left on device); free "
            "disk space, and run the same command again to resume"
        )
        assert not (tmp_path / "c4/manifest.json").exists()
    run(inputs, tmp_path / "c4", RELEASED, workers=1, num_shards=2)
    assert digests(tmp_path / "c4") == digests(tmp_path / "whole")


def test_buckets_depend_on_the_input_alone():
    assert bucket_count([Input(path="a.wet", size=10)]) == 4
    assert bucket_count([Input(path="a.wet", size=10 << 23)]) == 16
    assert bucket_count([Input(path="a.wet.gz", size=10 << 23)]) == 64
    assert bucket_count([Input(path="a.wet.gz", size=1 << 50)]) == local.MAX_BUCKETS


def test_wrong_arguments(tmp_path):
    one = [Input(path="a.wet", size=1)]
    for inputs, options in ((one, {"workers": -1}), (one, {"num_shards": 0}), ([], {})):
        with pytest.raises(InputError):
            run(inputs, tmp_path / "c4", RELEASED, **options)
    with pytest.raises(InputError, match="mount the bucket"):
        run(one, "gs://bucket/c4", RELEASED)
    assert not (tmp_path / "c4").exists()


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("cleaning", [RELEASED, PAPER], ids=["released", "paper"])
def test_workers_and_order_do_not_matter(tmp_path, cleaning):
    write_crawl(tmp_path / "crawl", files=6)
    inputs = expand_inputs([str(tmp_path / "crawl")])
    expected = None
    for workers in (1, 2, 8):
        random.Random(workers).shuffle(inputs)
        output = tmp_path / f"c4-{workers}"
        run(inputs, output, cleaning, workers=workers, num_shards=3)
        expected = expected or digests(output)
        assert digests(output) == expected


def test_progress_of_a_resumed_run_begins_with_the_finished_parts(tmp_path):
    write_crawl(tmp_path / "crawl", files=2, pages=40)
    inputs = expand_inputs([str(tmp_path / "crawl")])

    def stopped(stage, done, total):
        if (stage, done) == ("write", 1):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(inputs, tmp_path / "c4", RELEASED, workers=1, num_shards=3, progress=stopped)
    seen = []
    run(inputs, tmp_path / "c4", RELEASED, workers=1, num_shards=3,
        progress=lambda *stage: seen.append(stage))  # fmt: skip
    stages, done, total = zip(*seen, strict=True)
    assert set(stages) == {"write"}
    assert done == tuple(range(done[0], total[0] + 1))
    assert 1 <= done[0] < total[0]


SCRIPT = """
import dataclasses, sys
from t5x_lite.c4.config import Cleaning
from t5x_lite.c4.pages import expand_inputs
from t5x_lite.c4.local import run
if __name__ == "__main__":
    cleaning = Cleaning(languages=(), validation_modulus=10)
    run(expand_inputs([sys.argv[1]]), sys.argv[2], cleaning, workers=2, num_shards=3,
        progress=lambda *stage: print(*stage, flush=True))
"""


@pytest.mark.slow
@pytest.mark.exhaustive  # tests/e2e/test_c4.py kills it in the gate
def test_killed_five_times(tmp_path):
    write_crawl(tmp_path / "crawl", files=8, pages=300)
    (tmp_path / "script.py").write_text(SCRIPT)
    inputs = expand_inputs([str(tmp_path / "crawl")])
    run(inputs, tmp_path / "whole", RELEASED, workers=1, num_shards=3)
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "crawl")]
    output = tmp_path / "c4"
    rng = random.Random(0)
    kills = 0
    for stage in ("read", "clean", "clean", "filter", "write"):
        process = subprocess.Popen(
            [*command, str(output)], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(stage):
                time.sleep(rng.random() * 0.2)
                process.kill()
                kills += 1
                break
        process.stdout.close()
        process.wait()
    assert kills == 5
    subprocess.run([*command, str(output)], check=True, stdout=subprocess.DEVNULL)
    assert digests(output) == digests(tmp_path / "whole")


@pytest.mark.parametrize(
    ("module", "clear", "input_name"),
    [
        ("duckdb", None, "a.wet"),
        ("zstandard", "parts._zstandard", "a.wet"),
        ("resiliparse", "html._resiliparse", "a.warc"),
    ],
)
def test_a_missing_package_is_told_before_anything_is_read(
    tmp_path, monkeypatch, module, clear, input_name
):
    write_crawl(tmp_path / "crawl", files=1, pages=3)
    [made] = (tmp_path / "crawl").iterdir()
    made.rename(tmp_path / input_name)
    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, module, None)
    if clear:
        owner, _, function = clear.partition(".")
        getattr({"parts": output, "html": reading}[owner], function).cache_clear()
    done = []
    with pytest.raises(
        InputError, match=rf"needs? {module}, which is not installed; pip install .*c4"
    ):
        run(
            expand_inputs([str(tmp_path / input_name)]), tmp_path / "c4", RELEASED,
            workers=1, num_shards=1, progress=lambda *stage: done.append(stage),
        )  # fmt: skip
    assert done == []
    assert not (tmp_path / "c4").exists()
