"""Reads damaged files one after another, in a process of its own that measures time and memory.

    python -m tests.e2e.fuzz_readers 500 0 safetensors cache        # count, seed, readers

prints a line of JSON for each reader: how many files were read, how many refused by InputError, and
the failures: another error, more than ten seconds, or more than a gigabyte above the beginning.
"""

import contextlib
import faulthandler
import json
import logging
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

from tests.e2e import imported_files, module_files, own_files
from tests.e2e.mutations import mutant
from tests.e2e.reader import Reader

SECONDS, GROWTH = 10, 1 << 30
_MEMORY = 12 << 30
"""Address space beyond what the process has at its start: what asks for more gets MemoryError."""
READERS = imported_files.READERS | module_files.READERS | own_files.READERS


class TooLong(BaseException):
    """It took longer than it may."""


def fuzz(name: str, count: int, seed: int) -> dict[str, Any]:
    """Reads so many damaged files; see the module's docstring."""
    begin = time.process_time()
    reader, rng = READERS[name], random.Random(f"{name}{seed}")
    found: dict[str, Any] = {"reader": name, "read": 0, "refused": 0, "failures": []}
    with tempfile.TemporaryDirectory() as scratch:
        base = Path(scratch) / "base"
        base.mkdir()
        reader.make(base)
        whole = {path: path.read_bytes() for path in sorted(base.rglob("*")) if path.is_file()}
        reader.read(base)  # what is whole is read
        ways = [
            (path, form)
            for pattern, form in reader.forms.items()
            for path in whole
            if path.match(pattern)
        ]
        start = _peak()
        for number in range(count):
            path, form = rng.choice(ways)
            if progress := os.environ.get("FUZZ_PROGRESS"):  # what a crash was about
                Path(progress).write_text(f"{name} {seed}: {number} {path.relative_to(base)}")
            path.write_bytes(mutant(whole[path], form, rng))
            if reader.sign is not None and rng.random() < 0.5:
                with contextlib.suppress(Exception):
                    reader.sign(base)
            error = _outcome(reader, base)
            if _peak() - start > GROWTH:
                error, start = f"{(_peak() - start) >> 20} MiB more", _peak()
            if error not in ("read", "refused"):
                found["failures"].append(f"{number} {path.relative_to(base)} ({form}): {error}")
            else:
                found[error] += 1
            for other, content in whole.items():
                if not other.is_file() or other.read_bytes() != content:
                    other.parent.mkdir(parents=True, exist_ok=True)
                    other.write_bytes(content)
    seconds = round(time.process_time() - begin, 1)
    return found | {"mebibytes": (_peak() - start) >> 20, "seconds": seconds}


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _outcome(reader: Reader, base: Path) -> str:
    from t5x_lite.core.errors import InputError

    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        reader.read(base)
    except InputError as error:
        return "refused" if "\n" not in str(error) else f"several lines: {error}"
    except TooLong:
        return f"more than {SECONDS} seconds: {traceback.format_exc(limit=-4)}"
    except BaseException:  # panics of other languages are no Exception
        return traceback.format_exc(limit=-4)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return "read"


def _stop(*_: object) -> None:
    raise TooLong


def main(arguments: list[str]) -> None:
    """Runs the readers that are named, or all."""
    count, seed, *names = arguments
    faulthandler.enable()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, _stop)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + _MEMORY, size + _MEMORY))
    for name in names or READERS:
        print(json.dumps(fuzz(name, int(count), int(seed))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
