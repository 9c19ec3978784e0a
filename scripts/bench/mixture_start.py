"""Seconds and documents until a mixture with a large member takes its first step.

    python scripts/bench/mixture_start.py DIRECTORY [--glue GLUE] [--super-glue SUPERGLUE]
        [--documents 2000000] [--shards 16] [--mixture all_proportional] [--alone] [--keep]

Writes DOCUMENTS documents of at least 100 words into DIRECTORY/c4, in shards with names as C4's,
and trains a T5 of d_model 64 by `t5x-lite train` for one step on tasks.mixtures:MIXTURE, all of
whose tasks but SST-2, RTE, CB and the documents are left out by name. GLUE holds SST-2 and RTE,
SUPERGLUE holds CB; where they are not given, small files of words are written. --alone trains on
the documents alone, too. What DIRECTORY/c4 holds is used if it is there; without --keep it is
deleted at the end.

One JSON line: seconds from the start of the process until its first step is recorded, and the CPU
seconds and the documents that it parsed until its end, which is some seconds later.
"""

import argparse
import gzip
import json
import os
import platform
import random
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TEXT = "tasks.c4:iid_15_u_u"
KEPT = ("tasks.glue:sst2", "tasks.glue:rte", "tasks.super_glue:cb", TEXT)
WORDS = 100
"""Of a document at least."""
HELD_OUT = 64
"""Documents to validate on."""
SYLLABLES = ("ba", "do", "fe", "gu", "hi", "ka", "lo", "me", "nu", "po", "ri", "sa", "te", "vu")

COUNTING = """
import json, sys, threading
from pathlib import Path
from t5x_lite.data.tasks import text_source

lock, number, parse = threading.Lock(), [0], text_source._jsonl_text

def counting(line, where):
    with lock:
        number[0] += 1
    return parse(line, where)

text_source._jsonl_text = counting
from t5x_lite.cli import main

if code := main():
    sys.exit(code)
Path(sys.argv[sys.argv.index("--workdir") + 1], "documents").write_text(str(number[0]))
"""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--glue", type=Path)
    parser.add_argument("--super-glue", type=Path)
    parser.add_argument("--documents", type=int, default=2_000_000)
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--mixture", default="all_proportional")
    parser.add_argument("--mixing", nargs="*", default=[], help='as "maximum=524288"')
    parser.add_argument("--vocabulary", default="bytes")
    parser.add_argument("--vocab-size", type=int, default=384)
    parser.add_argument("--alone", action="store_true", help="the documents' task alone, too")
    parser.add_argument("--keep", action="store_true", help="leave the documents there")
    return parser.parse_args()


# Data.


def words(random_numbers: random.Random, count: int) -> str:
    return " ".join("".join(random_numbers.choices(SYLLABLES, k=3)) for _ in range(count))


def write_documents(directory: Path, *, documents: int, shards: int) -> None:
    """Shards of C4's names: documents of a number and two paragraphs of `WORDS` / 2 words each."""
    random_numbers = random.Random(0)
    paragraphs = [words(random_numbers, WORDS // 2) for _ in range(4096)]
    numbers = {
        f"c4-train.{shard:05}-of-{shards:05}.json.gz": range(shard, documents, shards)
        for shard in range(shards)
    }
    numbers["c4-validation.00000-of-00001.json.gz"] = range(HELD_OUT)
    directory.mkdir(parents=True)
    for name, those in numbers.items():
        with gzip.open(directory / name, "wt", compresslevel=1) as file:
            for number in those:
                first, second = random_numbers.choices(paragraphs, k=2)
                file.write(json.dumps({"text": f"{number} {first} {second}"}) + "\n")


def write_benchmarks(directory: Path) -> None:
    """A few labelled rows of words for each of SST-2, RTE and CB."""
    random_numbers = random.Random(1)
    texts = [words(random_numbers, 8) for _ in range(64)]
    sentences = [f"{text}\t{i % 2}" for i, text in enumerate(texts)]
    answers = ("entailment", "not_entailment")
    pairs = [f"{i}\t{text}\t{texts[-i]}\t{answers[i % 2]}" for i, text in enumerate(texts)]
    for split in ("train", "dev"):
        write_lines(directory / "SST-2" / f"{split}.tsv", ["sentence\tlabel", *sentences])
        write_lines(
            directory / "RTE" / f"{split}.tsv", ["index\tsentence1\tsentence2\tlabel", *pairs]
        )
    labels = ("entailment", "contradiction", "neutral")
    records = [
        json.dumps({"premise": text, "hypothesis": texts[-i], "label": labels[i % 3], "idx": i})
        for i, text in enumerate(texts)
    ]
    for split in ("train", "val"):
        write_lines(directory / "CB" / f"{split}.jsonl", records)


def write_lines(file: Path, lines: list[str]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n")


def prepare(arguments: argparse.Namespace) -> float:
    """Puts all data below the directory; returns the seconds that writing the documents took."""
    directory: Path = arguments.directory
    start = time.perf_counter()
    if not (directory / "c4").is_dir():
        write_documents(directory / "c4", documents=arguments.documents, shards=arguments.shards)
    seconds = time.perf_counter() - start
    write_benchmarks(directory / "words")
    given = {"glue": arguments.glue, "super_glue": arguments.super_glue}
    for name, source in given.items():
        link = directory / name
        link.unlink(missing_ok=True)
        link.symlink_to((source or directory / "words").resolve())
    return seconds


# Runs.


def left_out(mixture: str) -> list[str]:
    """The names of the tasks of a mixture that the run goes without."""
    sys.path.insert(0, str(ROOT))
    import tasks.mixtures

    members = getattr(tasks.mixtures, mixture).members
    return [member.name for member in members if member.task not in KEPT]


def cpu_seconds() -> float:
    """What processes that have ended here have used."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def first_step(arguments: argparse.Namespace, name: str, options: list[str]) -> dict[str, Any]:
    """Trains for one step in a process of its own."""
    workdir = arguments.directory / name
    shutil.rmtree(workdir, ignore_errors=True)
    model = {"vocab-size": arguments.vocab_size, "d-model": 64, "d-kv": 16, "d-ff": 128}
    command = [sys.executable, "-c", COUNTING, "train", str(ROOT / "configs" / "tiny_pretrain.py")]
    command += [f"--model.{field}={value}" for field, value in model.items()]
    command += ["--data.vocabulary", arguments.vocabulary, "--workdir", str(workdir)]
    command += [
        "--data.targets-length",
        "64",
        "--steps",
        "1",
        "--log-period",
        "1",
        "--evaluation.task-metrics",
        "False",
        *options,
    ]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    start, used = time.time(), cpu_seconds()
    done = subprocess.run(
        command, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    if done.returncode:
        raise SystemExit(f"the run failed:\n{done.stderr[-3000:]}")
    first = json.loads((workdir / "metrics.jsonl").read_text().splitlines()[0])
    return {
        "seconds": round(first["time"] - start, 1),
        "cpu_seconds": round(cpu_seconds() - used, 1),
        "documents_read": int((workdir / "documents").read_text()),
    }


def main() -> None:
    arguments = parse()
    directory = arguments.directory
    load = os.getloadavg()[0]
    try:
        writing = prepare(arguments)
        mixing = [f"--data.mixing.{setting}" for setting in arguments.mixing]
        of_mixture = [
            f"--data.task=tasks.mixtures:{arguments.mixture}",
            f"--data.directory={directory}",
            *mixing,
            "--data.mixing.leave-out",
            *left_out(arguments.mixture),
        ]
        result = first_step(arguments, "mixture", of_mixture)
        if arguments.alone:
            of_text = [f"--data.task={TEXT}", f"--data.directory={directory / 'c4'}"]
            result["alone"] = first_step(arguments, "alone", of_text)
        sizes = [file.stat().st_size for file in (directory / "c4").glob("c4-train.*")]
    finally:
        if not arguments.keep:
            shutil.rmtree(directory / "c4", ignore_errors=True)
    print(
        json.dumps(
            {
                "bench": "mixture_start",
                "device": platform.processor() or platform.machine(),
                "cpus": os.cpu_count(),
                "load": [round(load, 1), round(os.getloadavg()[0], 1)],
                "mixture": arguments.mixture,
                "mixing": arguments.mixing,
                "documents": arguments.documents,
                "shards": len(sizes),
                "bytes": sum(sizes),
                "seconds_of_writing": round(writing, 1),
                **result,
            }
        )
    )


if __name__ == "__main__":
    main()
