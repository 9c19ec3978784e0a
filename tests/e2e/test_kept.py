"""What a user of version 0.1 keeps is read, answers and resumes (scripts/archive_goldens.py).

Each entry of the archive does what it did, or is rejected by one line that names the command to
run. Answers equal the records up to the rounding of another machine. Resumed outputs are compared
on this machine, bit for bit: what a command adds to the part in the archive is what the same
command writes there without that part. Runs without a cache (t5_live, custom, lora) begin their
data anew, in the order of today: their losses were recorded again.
"""

import contextlib
import dataclasses
import io
import json
import pathlib
import shlex
import shutil
import sys

import numpy as np
import pytest

from scripts import archive_goldens as goldens
from t5x_lite.cli import main
from t5x_lite.data.cache.files import Cache

RECORDS = json.loads(goldens.RECORDS.read_text())
CACHES = ("encoder", "pairs", "squad", "sst2", "stars", "t5", "t5_baked", "t5_sharded")
# One of each kind in every landing; their kin in turns.
ANSWERING = (
    "choose", "classify", "contrastive", "custom", "deberta", "deltas/sum", "extended",
    "imported", "lora", "m3", "mlm", "prefix", "ranker", "spans", "sparse", "t5_table",
    "tag_tokens", "task_heads",
)  # fmt: skip
CONTINUED = ("task_heads",)
JOBS = ("search", "index", "bm25_build", "bm25_search", "answer")


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """The directory of a user, unpacked; each entry is used by the tests of its name."""
    directory = tmp_path_factory.mktemp("kept").resolve()
    goldens.unpack(directory)
    return directory


@pytest.fixture(autouse=True)
def _inside(archive, monkeypatch):
    monkeypatch.chdir(archive)
    # The user's packages have the names of ours, which other tests have imported.
    for name in [name for name in sys.modules if name.split(".")[0] in ("configs", "tasks")]:
        monkeypatch.delitem(sys.modules, name)


def run(line: str) -> str:
    """What a command says on standard error; it ends with exit code 0."""
    told = io.StringIO()
    with contextlib.redirect_stderr(told), contextlib.redirect_stdout(io.StringIO()):
        code = main(shlex.split(line))
    assert code == 0, told.getvalue()
    return told.getvalue()


def turns(names, gate):
    """The names as cases; those that no landing runs are in turns."""
    marks = [pytest.mark.slow, pytest.mark.exhaustive]
    return [name if name in gate else pytest.param(name, marks=marks) for name in names]


def files(place: pathlib.Path) -> dict[str, bytes]:
    """The files of a job by name; without those that say how long it took."""
    found = {
        str(path.relative_to(place)): path.read_bytes()
        for path in sorted(place.rglob("*"))
        if path.is_file() and ".lock" not in path.name
    }
    for name in [name for name in found if name.endswith("index.json")]:
        node = json.loads(found[name])
        node.pop("seconds", None)
        found[name] = json.dumps(node).encode()
    return found


def close(found, expected, *, rtol: float = 1e-3) -> None:
    """Equal trees of JSON, but for the rounding of numbers."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            close(found[key], value, rtol=rtol)
    elif isinstance(expected, list) and not (expected and isinstance(expected[0], float)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            close(one, other, rtol=rtol)
    elif isinstance(expected, str | bool | None):
        assert found == expected
    else:
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=1e-4)


# All that is there.


OBJECTIVES = (
    "choose:Choose", "classify:Classify", "cocondenser:CoCondenser", "condenser:Condenser",
    "contrastive:Contrastive", "distill:Distill", "electra:Electra", "graded:CosineRegression",
    "graded:Triplets", "language_model:LanguageModel", "m3:M3", "masked_lm:MaskedLM",
    "base:NoLoss", "ranker:Ranker", "retromae:RetroMAE", "seq2seq:Seq2Seq", "spans:Spans",
    "tag_tokens:TagTokens", "task_heads:TaskHeads",
)  # fmt: skip
LATER: set[str] = set()
"""Methods of modules that are in no archive of version 0.1."""


def test_the_archive_has_what_it_is_about(archive):
    from t5x_lite.adapters.grammar import METHODS

    assert set(goldens.runs()) == set(RECORDS)
    assert set(METHODS) - LATER <= {name.removeprefix("t5_") for name in RECORDS}
    texts = [path.read_text() for path in (archive / "work").rglob("config.json")]
    for name in OBJECTIVES:
        assert any(f"t5x_lite.objectives.{name}" in text for text in texts), name
    assert any("kept_objective:Weighted" in text for text in texts)
    assert {path.name for path in (archive / "jobs").iterdir()} >= set(goldens.JOBS)


@pytest.mark.parametrize(
    "place",
    ["work/m3", "work/seq_bn", "work/imported", "deltas/ties", "caches/encoder"],
)
def test_info_reads_a_directory(place):
    run(f"info {place} --json --trust-project")


def test_the_caches_are_whole(archive):
    for name in CACHES:
        Cache(archive / "caches" / name).verify()
    assert len(Cache(archive / "caches" / "t5_sharded").index.splits["train"].shards) > 1


@pytest.mark.parametrize("name", CACHES)
def test_a_cache_is_converted_without_loss(name, archive):
    run(f"cache --convert caches/{name} --output converted/{name}")
    old, new = Cache(archive / "caches" / name), Cache(archive / "converted" / name)
    new.verify()
    assert new.digest == old.digest
    for split in old.index.splits:
        one, other = old.split(split), new.split(split)
        numbers = np.random.default_rng(0).permutation(one.size)
        np.testing.assert_array_equal(one.counts(numbers), other.counts(numbers))
        np.testing.assert_array_equal(one.longest(), other.longest())
        for example, same in zip(one.read(numbers), other.read(numbers), strict=True):
            assert example.keys() == same.keys()
            for feature, tokens in example.items():
                np.testing.assert_array_equal(tokens, same[feature])
    assert files(old.directory / "vocabulary") == files(new.directory / "vocabulary")
    known = dataclasses.replace(old.index, splits={}, converted="", format=2)
    assert dataclasses.replace(new.index, splits={}, converted="") == known


@pytest.mark.parametrize("name", turns(sorted(RECORDS), ANSWERING))
def test_a_run_answers_as_recorded(name):
    recorded = {key: value for key, value in RECORDS[name].items() if key != "losses"}
    close(json.loads(json.dumps(goldens.answered(name))), recorded)


@pytest.mark.parametrize("name", turns(goldens.CONTINUED, CONTINUED))
def test_a_run_trains_on(name, archive, compile_once):
    """As recorded; and in two commands as in one, bit for bit."""
    place = archive / "work" / name
    shutil.copytree(place, archive / "again" / name)
    whole = goldens.continued(name)
    close(whole, RECORDS[name]["losses"], rtol=1e-2)
    shutil.rmtree(place)
    shutil.move(archive / "again" / name, place)
    stop = 5 if name != "refreshed" else 6
    assert goldens.continued(name, stop) == whole


# Indexes, vectors and runs.


def test_indexes_and_vectors_give_the_runs_that_they_gave(archive):
    run("bm25 search --index indexes/bm25 --queries data/queries.jsonl --output bm25.trec")
    assert (archive / "bm25.trec").read_bytes() == (archive / "runs" / "bm25.trec").read_bytes()
    asked = "--queries vectors/queries.npy --query-ids data/queries.jsonl"
    run(f"search --vectors vectors/passages.npy --ids data/passages.jsonl {asked} "
        "--output exact.jsonl")  # fmt: skip
    expected = rankings(archive / "runs" / "exact.jsonl")
    close(rankings(archive / "exact.jsonl"), expected)
    run(f"search --vectors vectors/passages.parquet {asked} --output parquet.jsonl")
    close(rankings(archive / "parquet.jsonl"), expected)
    parts = "vectors/part-1.npy vectors/part-2.npy"
    run(f"search --vectors {parts} --ids data/passages.jsonl {asked} --output parts.jsonl")
    close(rankings(archive / "parts.jsonl"), expected)
    run("hybrid --corpus vectors/m3_passages --queries vectors/m3_queries --output hybrid")
    for way in ("dense", "lexical", "multi_vector", "dense_lexical", "all"):
        close(
            trec(archive / "hybrid" / f"{way}.trec"), trec(archive / "runs" / "m3" / f"{way}.trec")
        )


def test_faiss_finds_what_exact_search_found(archive):
    pytest.importorskip("faiss")
    asked = "--queries vectors/queries.npy --query-ids data/queries.jsonl"
    expected = rankings(archive / "runs" / "exact.jsonl")
    for name, option in (("flat", ""), ("ivf", "--nprobe 4"), ("hnsw", "--ef-search 64")):
        run(f"index search --index indexes/{name} {asked} {option} --output {name}.jsonl")
        best = {query: set(found) for query, found in rankings(archive / f"{name}.jsonl").items()}
        assert best.keys() == expected.keys()
        if name != "hnsw":
            close(rankings(archive / f"{name}.jsonl"), expected)


def rankings(path: pathlib.Path) -> dict[str, dict[str, float]]:
    """Query -> document -> score, of a run in JSON lines."""
    lines = map(json.loads, path.read_text().splitlines())
    return {
        line["query"]: dict(zip(line["documents"], line["scores"], strict=True)) for line in lines
    }


def trec(path: pathlib.Path) -> dict[str, dict[str, float]]:
    """The same of a run of TREC."""
    found: dict[str, dict[str, float]] = {}
    for line in path.read_text().splitlines():
        query, _, document, _, score, _ = line.split()
        found.setdefault(query, {})[document] = float(score)
    return found


# Killed jobs.


@pytest.mark.parametrize(
    "name",
    turns(
        [name for name in goldens.JOBS if name != "train"],
        JOBS,
    ),
)
def test_a_killed_job_resumes(name, archive):
    if name == "index":
        pytest.importorskip("faiss")
    place, left = archive / "jobs" / name, archive / "jobs" / f"{name}.left"
    place.rename(left)
    place.mkdir()
    run(goldens.JOBS[name])
    alone = files(place)
    shutil.rmtree(place)
    shutil.copytree(left, place, copy_function=shutil.copy2)
    told = run(goldens.JOBS[name])
    found = {n: content for n, content in files(place).items() if not n.startswith(".out.")}
    assert found.keys() == alone.keys()
    if name in ("predict", "answer", "score", "score_pairs"):
        kept = (left / "out.jsonl.partial").read_bytes().splitlines()
        lines, expected = found["out.jsonl"].splitlines(), alone["out.jsonl"].splitlines()
        assert 0 < len(kept) < len(lines)
        assert f"{len(kept)}" in told
        assert lines[: len(kept)] == kept
        assert lines[len(kept) :] == expected[len(kept) :]
        close([*map(json.loads, kept)], [*map(json.loads, expected[: len(kept)])])
    elif name in ("rerank", "search"):
        close(trec(place / "out.trec"), trec_of(alone["out.trec"]))
    else:
        assert found == alone


def trec_of(content: bytes) -> dict[str, dict[str, float]]:
    """The run of a file's content."""
    path = pathlib.Path("alone.trec")
    path.write_bytes(content)
    return trec(path)


@pytest.mark.slow
def test_a_killed_training_resumes(archive, compile_once):
    """From the newest step that is whole; and twice alike."""
    place, other = archive / "jobs" / "train", archive / "jobs" / "other"
    shutil.copytree(place, other)
    told = run(goldens.JOBS["train"])
    assert "step 2" in told or "resum" in told
    losses = (place / "out" / "metrics.jsonl").read_text()
    shutil.rmtree(place)
    other.rename(place)
    run(goldens.JOBS["train"])
    assert steps_of(losses) == steps_of((place / "out" / "metrics.jsonl").read_text())
    assert sorted(steps_of(losses)) == [1, 2, 3, 4, 5, 6]


def steps_of(metrics: str) -> dict[int, float]:
    """Step -> loss."""
    return {line["step"]: line["loss"] for line in map(json.loads, metrics.splitlines())
            if "loss" in line}  # fmt: skip


# What a user wrote.


def test_configs_of_a_user_load(archive):
    from t5x_lite import config

    for path in sorted((archive / "configs").glob("kept_*.py")):
        if path.stem != "kept_old_imports":
            config.load(f"configs/{path.name}")


def test_a_module_s_old_name_works_or_is_answered_by_the_new_one(archive):
    told = io.StringIO()
    with contextlib.redirect_stderr(told), contextlib.redirect_stdout(io.StringIO()):
        code = main(["train", "configs/kept_old_imports.py", "--dry-run"])
    lines = told.getvalue().splitlines()
    if code:
        assert len(lines) == 1
        assert "t5x_lite.data.stages is t5x_lite.data.tasks.stages now" in lines[0]


def test_checkpoints_of_a_user_s_classes_are_read_if_they_are_trusted(archive):
    told = io.StringIO()
    line = "predict --checkpoint work/custom --input data/lines.jsonl --output custom.jsonl"
    with contextlib.redirect_stderr(told):
        assert main(line.split()) == 2
    assert "--trust-project" in told.getvalue()
    assert len(told.getvalue().splitlines()) == 1
