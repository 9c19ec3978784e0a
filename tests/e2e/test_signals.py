"""SIGINT, SIGTERM and SIGHUP in commands at any time: one line, the code, nothing unfinished.

Each command runs in a process of its own on a job of some seconds. A signal comes after a part of
the job's time, from the first import on. The job may be over by then, which is no fault; what is
never allowed is a traceback, a crash, another exit code, an unfinished file, or a process that goes
on for more than some seconds.
"""

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from t5x_lite.config import Checkpoints
from t5x_lite.config.file import to_json
from t5x_lite.core.signals import line_of
from t5x_lite.data.config import Refresh
from t5x_lite.inference.loading import read_experiment
from t5x_lite.layouts import Groups
from t5x_lite.objectives.contrastive import Contrastive
from tests import encoder_checkpoint, t5_checkpoint
from tests.c4 import made_up_crawl
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.multiprocess]

ROOT = Path(__file__).parents[2]
_SECONDS = 12.0
"""Until a process is over: the grace of `core.signals`, on a machine that does much else."""
_TRAINING = ("train", "finetune")
_TRAINING_SECONDS = 18.0
"""The same of commands that train: before the first step they have 15 s, in `train.stopping`."""
_BAD = (
    "Traceback",
    "Exception ignored",
    "Fatal",
    "Segmentation",
    "core dumped",
    "Aborted",
    "(--debug",
)
_RESUMED = (".partial", ".partial.json", ".npz")
_DIRECTORIES = ("train", "finetune", "c4", "refresh", "evaluate-suite")
"""Commands that resume in their output directory."""


@pytest.fixture(scope="module")
def world(tmp_path_factory, english_lines, tiny_vocabulary, tiny_experiment):
    """A directory with checkpoints, texts and vectors."""
    return make_world(
        tmp_path_factory.mktemp("signals"), english_lines, tiny_vocabulary, tiny_experiment
    )


def make_world(root, english_lines, tiny_vocabulary, tiny_experiment):
    t5_checkpoint.write_checkpoint(root, tiny_vocabulary)
    encoder_checkpoint.write_checkpoint(root, "bert")
    (root / "r").mkdir()
    encoder_checkpoint.write_ranker(root / "r")
    (root / "text").mkdir()
    (root / "text" / "prose.txt").write_text("\n".join(english_lines[:400]) + "\n")
    (root / "long.txt").write_text("\n".join(english_lines * 30) + "\n")
    rng = random.Random(0)

    def words(number):
        return " ".join(rng.choice("abcdefghijklmno") for _ in range(number))

    def write(name, records):
        (root / name).write_text("".join(json.dumps(record) + "\n" for record in records))

    corpus = [{"_id": str(i), "text": words(rng.randint(3, 9))} for i in range(30_000)]
    queries = [{"_id": f"q{i}", "text": words(4)} for i in range(3000)]
    write("corpus.jsonl", corpus)
    write("queries.jsonl", queries)
    write("documents.jsonl", [{"title": words(4), "body": words(30)} for _ in range(20_000)])
    write(
        "pairs.jsonl",
        [{"query": one["text"], "pos": [corpus[i]["text"]]} for i, one in enumerate(queries)],
    )
    write(
        "inputs.jsonl",
        [{"inputs": line[:80], "targets": "some words"} for line in english_lines * 9],
    )
    (root / "run.trec").write_text(
        "".join(
            f"q{i} Q0 {(7 * i + k) % 900} {k + 1} {50 - k} x\n"
            for i in range(300)
            for k in range(50)
        )
    )
    import numpy as np

    vectors = np.random.default_rng(0).normal(size=(60_000, 64)).astype(np.float32)
    np.save(root / "vectors.npy", vectors)
    np.save(root / "query_vectors.npy", vectors[:3000])
    experiment = dataclasses.replace(
        tiny_experiment,
        steps=100_000,
        data=dataclasses.replace(tiny_experiment.data, directory=str(root / "text")),
    )
    (root / "config.json").write_text(to_json(experiment))
    _write_runs(root, experiment)
    _write_other_inputs(root, english_lines, words, write)
    for line in (
        "bm25 build --input corpus.jsonl --output bm25",
        "index build --vectors vectors.npy --output faiss --kind Flat",
        "train config.json --workdir tuned --steps 6 --checkpoints.period 6 --init t5 "
        "--model init --adapters.add a=lora(r=2)",
        "export hf t5 exported",
        "export adapter tuned module",
        "cache refreshed.json --output refreshed_cache",
    ):
        process = start(root, line.split())
        assert process.wait() == 0, process.stderr and process.stderr.read()
    return root


def _write_runs(root, experiment):
    """A retriever whose run needs a search of step 2, and the configs of both."""
    objective = Contrastive(pooling="mean")
    refresh = Refresh(period=2, lag=1, top=5, directory=str(root / "searches"))
    made = encoder_checkpoint.write_ranker(
        root / "w", objective=objective, layout=Groups(), inputs_length=8
    )
    (root / "refreshed" / "checkpoints").mkdir(parents=True)
    step = made.rename(root / "refreshed" / "checkpoints" / "2")
    run = read_experiment(step, {"config.json": (step / "files" / "config.json").read_bytes()})
    data = dataclasses.replace(
        run.data,
        task="tasks.pairs:jsonl",
        directory=str(root / "few"),
        vocabulary=str(step / "files" / "vocabulary"),
    )
    run = dataclasses.replace(run, data=data, steps=9, checkpoints=Checkpoints(period=2))
    (root / "refreshed.json").write_text(to_json(run))
    data = dataclasses.replace(
        data, task="", directory="", cache=str(root / "refreshed_cache"), refresh=refresh
    )
    (root / "refreshed" / "config.json").write_text(to_json(dataclasses.replace(run, data=data)))


def _write_other_inputs(root, english_lines, words, write):
    """Tables, a crawl, articles with the answers of a generator, a benchmark, pairs with scores."""
    texts = [line[:60].replace('"', "'") for line in english_lines[:300]]
    rows = "".join(f'"{text}",{i % 2}\n' for i, text in enumerate(texts))
    (root / "table.csv").write_text("text,stars\n" + rows)
    (root / "crawl").mkdir()
    made_up_crawl.write_crawl(root / "crawl", english_lines, pages=600)
    (root / "bad.txt").write_text(made_up_crawl.BAD_WORDS)
    articles = [{"id": f"a{i}", "text": words(60) + "\n\n" + words(60)} for i in range(9000)]
    write("articles.jsonl", articles)
    write("answers.jsonl", [{"id": f"a{i}", "question": words(5)} for i in range(9000)])
    (root / "few").mkdir()
    write(
        "few/train.jsonl",
        [{"query": words(3), "pos": [words(4)], "neg": [words(3)]} for _ in range(300)],
    )
    (root / "beir" / "nq" / "qrels").mkdir(parents=True)
    write("beir/nq/corpus.jsonl", [{"_id": f"d{i}", "text": words(9)} for i in range(3000)])
    write("beir/nq/queries.jsonl", [{"_id": f"q{i}", "text": words(4)} for i in range(300)])
    judged = "".join(f"q{i}\td{i}\t1\n" for i in range(300))
    (root / "beir/nq/qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged)
    scored = "".join(f"{i}\t{words(4)}\t{words(4)}\t{i % 5}\n" for i in range(900))
    (root / "sts.tsv").write_text("index\tsentence1\tsentence2\tscore\n" + scored)
    (root / "glue" / "SST-2").mkdir(parents=True)
    for name, lines in (("train", english_lines[:40]), ("dev", english_lines[40:60])):
        rows = "".join(f"{line[:60]}\t{i % 2}\n" for i, line in enumerate(lines))
        (root / "glue" / "SST-2" / f"{name}.tsv").write_text("sentence\tlabel\n" + rows)


@dataclasses.dataclass(frozen=True)
class Job:
    """A command line, about how long it takes, and whether the output may be resumed."""

    line: str
    seconds: float = 12.0
    codes: tuple[int, ...] = ()
    resumes: bool = False


JOBS = {
    "init": Job("init OUT"),
    "train": Job("train config.json --workdir OUT", 25.0, resumes=True),
    "evaluate": Job("evaluate config.json --checkpoint t5 --output OUT"),
    "predict": Job("predict --checkpoint t5 --input inputs.jsonl --output OUT", resumes=True),
    "score": Job("score --checkpoint t5 --input inputs.jsonl --output OUT", resumes=True),
    "embed": Job("embed --checkpoint bert --input corpus.jsonl --pooling cls --output OUT.npy"),
    "serve": Job("serve --checkpoint t5 --port 0", codes=(0,)),
    "info": Job("info t5", 4.0),
    "search": Job(
        "search --vectors vectors.npy --queries query_vectors.npy --output OUT", resumes=True
    ),
    "index build": Job(
        "index build --vectors vectors.npy --output OUT --kind HNSW32,Flat --ef-construction 40"
    ),
    "index search": Job("index search --index faiss --queries query_vectors.npy --output OUT"),
    "bm25 build": Job("bm25 build --input corpus.jsonl --output OUT", 4.0, resumes=True),
    "bm25 search": Job(
        "bm25 search --index bm25 --queries queries.jsonl --output OUT", 6.0, resumes=True
    ),
    "rerank": Job(
        "rerank --checkpoint r/ranker --input run.trec --queries queries.jsonl "
        "--passages corpus.jsonl --output OUT.trec",
        resumes=True,
    ),
    "mine": Job("mine --checkpoint bert --input pairs.jsonl --output OUT --last 50", resumes=True),
    "pairs": Job("pairs --input documents.jsonl --output OUT --rule title_body", 4.0, resumes=True),
    "import hf": Job("import hf t5_source OUT", 6.0),
    "export hf": Job("export hf t5 OUT", 6.0),
    "extend": Job("extend bert OUT --positions 64", 6.0),
    "vocab": Job("vocab --input long.txt --output OUT --size 2000"),
    "cache": Job("cache config.json --output OUT", 15.0),
    "cache workers": Job("cache config.json --output OUT --num-workers 2", 25.0),
    "plan": Job("plan config.json --devices cpu:1", 15.0),
    "push": Job("push t5_source someone/model --dry-run", 3.0),
    "finetune": Job(
        "finetune --init t5 --table table.csv --inputs {text} --targets {stars} --workdir OUT",
        25.0,
        resumes=True,
    ),
    "c4": Job("c4 --input crawl --output OUT --workers 2", 15.0, resumes=True),
    "refresh": Job("refresh refreshed --passages beir/nq/corpus.jsonl --once", resumes=True),
    "synthesize requests": Job(
        "synthesize requests --articles articles.jsonl --min-words 100 --output OUT", 4.0
    ),
    "synthesize collect": Job(
        "synthesize collect --articles articles.jsonl --answers answers.jsonl --output OUT", 4.0
    ),
    "few-shot": Job(
        "evaluate config.json --checkpoint t5 --output OUT --data.task tasks.glue:sst2 "
        "--data.directory glue --evaluation.few-shot.examples 1"
    ),
    "merge": Job("merge tuned OUT", 6.0),
    "compose": Job("compose 0.5*a OUT --delta a=tuned", 6.0),
    "fisher": Job("fisher tuned OUT --examples 50", 15.0),
    "heads": Job("heads t5 OUT --examples 50 --keep 0.5", 15.0),
    "report": Job("report tuned --output OUT.html", 3.0),
    "import adapter": Job("import adapter module OUT --base t5", 6.0),
    "export adapter": Job("export adapter tuned OUT", 6.0),
    "export stablehlo": Job("export stablehlo t5 OUT", 15.0),
    "score-pairs": Job(
        "score-pairs --checkpoint r/ranker --input pairs.jsonl --output OUT", resumes=True
    ),
    "fuse": Job("fuse --runs run.trec run.trec --output OUT.trec", 3.0),
    "evaluate-suite": Job(
        "evaluate-suite beir --directory beir --output OUT --checkpoint bert --pooling cls",
        15.0,
        resumes=True,
    ),
    "evaluate-sts": Job("evaluate-sts --input sts.tsv --checkpoint bert --pooling cls", 8.0),
    "index bench": Job(
        "index bench --indexes faiss --vectors vectors.npy --queries query_vectors.npy", 8.0
    ),
}


def start(world, arguments):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(world)}
    environment.pop("XLA_FLAGS", None)
    return subprocess.Popen(
        [sys.executable, "-m", "t5x_lite", *arguments],
        cwd=world,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=_take_signals,
    )


def _take_signals():
    """Undoes what a shell does to a job in the background: it ignores SIGINT, and nohup SIGHUP."""
    for signum in (signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_DFL)


def processes_of(session):
    """The processes of a session that still run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(path.parent.name)
    return found


def interrupt(world, name, *, after, signum, again=None, group=False):
    """Sends a signal to a job, or to all its processes as a terminal does; checks its end.

    Gives the exit code.
    """
    job, before = JOBS[name], set(os.listdir(world))
    output = f"out{time.monotonic_ns()}"
    process = start(world, job.line.replace("OUT", output).split())
    for seconds in (after, again):
        if seconds is not None:
            time.sleep(seconds)
            if process.poll() is None:
                os.killpg(process.pid, signum) if group else process.send_signal(signum)
    sent = time.monotonic()
    try:
        _, told = process.communicate(timeout=90)
    finally:
        process.kill()
    took, code = time.monotonic() - sent, process.returncode
    if "runpy" in told and "t5x_lite/" not in told:
        return code  # Python's own start, before any module of ours
    case = f"{name} after {after:.2f} s: code {code}, {took:.1f} s more, {told!r}"
    print(case)
    assert code in (0, 128 + signum), case
    assert not any(bad in told for bad in _BAD), case
    made = set(os.listdir(world)) - before
    if code:
        assert took < (_TRAINING_SECONDS if name in _TRAINING else _SECONDS), case
        last = told.strip().splitlines()[-1]
        assert last.startswith((line_of(signum), f"stopped by signal {signum:d}")), case
        if not job.resumes:
            assert not made, (case, made)
        assert all(one.endswith(_RESUMED) for one in made) or name in _DIRECTORIES, (case, made)
    wait_until(lambda: not processes_of(process.pid), seconds=20.0, why=lambda: case)
    return code


@pytest.mark.gate("predict", "vocab", "bm25 build")
@pytest.mark.parametrize("name", JOBS)
def test_a_signal_at_any_time(world, name):
    rng = random.Random(name)
    times = int(os.environ.get("SIGNALS", "2"))
    codes = [
        interrupt(
            world,
            name,
            after=rng.uniform(0.3, JOBS[name].seconds),
            signum=rng.choice([signal.SIGINT, signal.SIGTERM, signal.SIGHUP]),
            again=rng.choice([None, None, 0.01, 1.2]),
            group=rng.random() < 0.5,
        )
        for _ in range(times)
    ]
    print(name, {code: codes.count(code) for code in sorted(set(codes))})


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_modules_are_imported(tmp_path, signum):
    for after in (0.06, 0.1, 0.2):
        process = start(tmp_path, ["info", "nothing"])
        time.sleep(after)
        process.send_signal(signum)
        _, told = process.communicate()
        starting = "init_import_site" in told  # Python's own start
        if process.returncode not in (2, -signum) and not starting:  # over, or not begun
            assert (process.returncode, told) == (128 + signum, f"{line_of(signum)}\n")
