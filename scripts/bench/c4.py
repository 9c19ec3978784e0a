"""The whole of C4 on one machine: pages a second and peak memory, with and without langdetect.

    python scripts/bench/c4.py --data PROSE_DIRECTORY [--size 0.05] [--workers 2] [--seed 0]

The input is a crawl of WET files that is recombined from the sentences of the *.txt files of
--data: lines of two or three random sentences, lines of a small pool that come again and again,
and lines as menus have them. At least half of all lines are unique, or it stops. --size is in GB
of records before compression. Each run is a process of its own; memory is the resident set of it
and of all that it starts, summed, looked at ten times a second. One JSON line for each run.
"""

import argparse
import array
import gzip
import json
import os
import pathlib
import platform
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time

import numpy as np

FILE_BYTES = 64_000_000
POOL = 5_000
MENU = ("Home", "About us", "Contact", "Log in", "Read more", "Share this page", "Next >")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--size", type=float, default=0.05, help="GB")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args()


def sentences(directory: pathlib.Path) -> list[str]:
    found: list[str] = []
    for path in sorted(directory.glob("*.txt")):
        text = " ".join(path.read_text(encoding="utf-8", errors="replace").split())
        found += [part for part in re.split(r"(?<=[.?!])\s", text) if 20 < len(part) < 400]
    if not found:
        raise SystemExit(f"{directory}: no sentence in its *.txt files")
    return found


def page(rng: random.Random, parts: list[str], pool: list[str]) -> list[str]:
    lines = []
    for _ in range(rng.randint(4, 40)):
        kind = rng.random()
        if kind < 0.15:
            lines.append(rng.choice(MENU))
        elif kind < 0.35:
            lines.append(rng.choice(pool))
        else:
            lines.append(" ".join(rng.choices(parts, k=rng.randint(2, 3))))
    return lines


def write_crawl(directory: pathlib.Path, arguments: argparse.Namespace) -> dict:
    """WET files, a gzip member for each record; how many pages, and the share of unique lines."""
    rng, parts = random.Random(arguments.seed), sentences(arguments.data)
    pool = rng.choices(parts, k=POOL)
    hashes, pages, total, left = array.array("q"), 0, int(arguments.size * 1e9), 0
    file = None
    while total > 0:
        if left <= 0:
            if file is not None:
                file.close()
            file = (directory / f"{pages:09d}.warc.wet.gz").open("wb")
            left = FILE_BYTES
        lines = page(rng, parts, pool)
        hashes.extend(hash(line) for line in lines)
        body = "\n".join(lines).encode()
        # One URL in ten is another page's.
        number = rng.randrange(pages) if pages and rng.random() < 0.1 else pages
        header = (
            "WARC/1.0\r\nWARC-Type: conversion\r\n"
            f"WARC-Target-URI: https://site{number % 997}.example/{number}\r\n"
            f"WARC-Date: 2019-04-{rng.randint(1, 28):02d}T00:00:00Z\r\n"
            f"Content-Type: text/plain\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        record = header.encode() + body + b"\r\n\r\n"
        assert file is not None
        file.write(gzip.compress(record, 1, mtime=0))
        pages, total, left = pages + 1, total - len(record), left - len(record)
    if file is not None:
        file.close()
    _, counts = np.unique(np.frombuffer(hashes, np.int64), return_counts=True)
    return {"pages": pages, "unique_lines": round(float((counts == 1).sum() / len(hashes)), 3)}


def resident(pid: int) -> int:
    """Bytes of a process and of all that it started."""
    try:
        tasks = pathlib.Path(f"/proc/{pid}/task").iterdir()
        children = [child for task in tasks for child in (task / "children").read_text().split()]
        pages = int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") + sum(resident(int(child)) for child in children)


def run(crawl: str, output: str, *, workers: int, languages: bool) -> None:
    """The process that is measured."""
    import dataclasses

    from t5x_lite.c4 import config, local
    from t5x_lite.c4 import pages as reading

    cleaning = config.released()
    if not languages:
        cleaning = dataclasses.replace(cleaning, languages=())
    began: dict[str, float] = {}
    ended: dict[str, float] = {}

    def progress(stage: str, done: int, total: int) -> None:
        began.setdefault(stage, time.perf_counter())
        if done == total:
            ended[stage] = time.perf_counter()

    start = time.perf_counter()
    tally = local.run(
        reading.expand_inputs([crawl]),
        output,
        cleaning,
        workers=workers,
        num_shards=16,
        progress=progress,
    )
    seconds = time.perf_counter() - start
    kept = sum(counts["pages"] for counts in tally.splits.values())
    kept_bytes = sum(counts["bytes"] for counts in tally.splits.values())
    read = tally.stages["read"]
    found = {
        "seconds": round(seconds, 1),
        "pages_per_second": round(read["pages_in"] / seconds),
        "kept_pages": round(kept / read["pages_in"], 3),
        "kept_bytes": round(kept_bytes / read["bytes_in"], 3),
        "stages": {name: round(ended[name] - began[name], 1) for name in began},
    }
    print(json.dumps(found), flush=True)


def measure(crawl: pathlib.Path, arguments: argparse.Namespace, *, languages: bool) -> dict:
    output = crawl.with_name("output")
    command = [sys.executable, __file__, "--data", str(arguments.data)]
    command += ["--workers", str(arguments.workers), "--run", str(crawl), str(output)]
    environment = os.environ | {"BENCH_LANGUAGES": str(int(languages))}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    peak = 0
    while process.poll() is None:
        peak = max(peak, resident(process.pid))
        time.sleep(0.1)
    assert process.stdout is not None
    lines = process.stdout.read().splitlines()
    shutil.rmtree(output, ignore_errors=True)
    if process.returncode:
        raise SystemExit(process.returncode)
    return {**json.loads(lines[-1]), "peak_rss_mb": round(peak / 1e6)}


def main() -> None:
    arguments = parse()
    if arguments.run:
        languages = os.environ["BENCH_LANGUAGES"] == "1"
        run(*arguments.run, workers=arguments.workers, languages=languages)
        return
    with tempfile.TemporaryDirectory() as directory:
        crawl = pathlib.Path(directory, "crawl")
        crawl.mkdir()
        made = write_crawl(crawl, arguments)
        if made["unique_lines"] < 0.5:
            raise SystemExit(f"only {made['unique_lines']:.0%} of the lines are unique")
        for languages in (False, True):
            found = {
                "bench": "c4",
                "size_gb": arguments.size,
                "workers": arguments.workers,
                "langdetect": languages,
                **made,
                **measure(crawl, arguments, languages=languages),
                "load": round(os.getloadavg()[0], 1),
                "cores": os.cpu_count(),
                "machine": platform.machine(),
            }
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
