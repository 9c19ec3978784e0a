"""What C4 on a cluster needs besides its stages: rules that travel, a result, an output directory.

carried = CarriedRules(cleaning)    # on the machine that starts the job; pickled to the workers
rules = carried.unpack()            # on a worker

job = Job(output, description)      # the output directory, taken for this run
job.result                          # where the pipeline puts its Result; there: it has ended
job.finish(result)                  # the manifest, last
"""

import dataclasses
import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t5x_lite.c4.config import Cleaning
from t5x_lite.c4.output import MANIFEST_NAME, Shard, manifest, read_manifest
from t5x_lite.c4.pages import Tally
from t5x_lite.c4.stages import Rules
from t5x_lite.c4.workdir import WORK, Workdir, refuse_other
from t5x_lite.errors import InputError
from t5x_lite.remote import AnyPath, is_remote, open_path, remove_tree, write_whole

DOMAINS_KEPT = 1000
"""Domains in a result; a whole crawl has millions, and no machine need hold them."""
CARRIED_BYTES = 1 << 22
_LISTS = ("bad_words", "domains", "urls")
RESULT, _RUN = "result.json", "run.json"


class CarriedRules:
    """Rules that travel to the workers with the small files that they name.

    A list of bad words is a file of this machine, which a worker elsewhere does not see. One of
    more than 4 MiB, such as OpenWebText's URLs, does not travel: its path must lead to it on every
    worker.
    """

    def __init__(self, cleaning: Cleaning):
        """Reads the files.

        Raises:
          InputError: one cannot be read.
        """
        self._cleaning = cleaning
        self._files = {name: _carried(name, getattr(cleaning, name)) for name in _LISTS}

    def unpack(self) -> Rules:
        """The rules, on a worker; the files are there as long as this object."""
        self._directory = tempfile.TemporaryDirectory(prefix="t5x_lite-c4-")
        paths = {}
        for name, files in self._files.items():
            root = Path(self._directory.name, name)
            root.mkdir()
            for path, content in files.items():
                (root / path).write_bytes(content)
            if files:
                paths[name] = str(root / _ALONE if _ALONE in files else root)
        return Rules(dataclasses.replace(self._cleaning, **paths))


_ALONE = ".list"
"""The name that a list has which is one file, and no list in a folder."""


def _carried(field: str, path: str) -> dict[str, bytes]:
    """The files of a list by name; none where there is nothing to carry."""
    if not path:
        return {}
    root = Path(path)
    try:
        folder = root.is_dir()
        files = [file for file in sorted(root.iterdir()) if file.is_file()] if folder else [root]
        if sum(file.stat().st_size for file in files) > CARRIED_BYTES:
            return {}
        return {file.name if folder else _ALONE: file.read_bytes() for file in files}
    except OSError as error:
        raise InputError(f"cleaning.{field}: cannot read {path}: {error.strerror}") from error


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a pipeline did.

    Attributes:
      tally: of the whole run. Of more than `DOMAINS_KEPT` domains it has the largest, and how many
        there are in `notes`.
      shards: every file.
    """

    tally: Tally
    shards: list[Shard]

    @classmethod
    def of(
        cls,
        tallies: Iterable[Tally],
        shards: Iterable[Shard],
        domains: Iterable[tuple[int, Sequence[tuple[str, int]]]],
    ) -> "Result":
        """Puts together what the parts of a pipeline found, in any order.

        Args:
          tallies: of the stages, without domains.
          shards: every file.
          domains: of groups of domains: how many there are, and the largest with their pages.
        """
        total = Tally()
        for tally in tallies:
            total.merge(tally)
        number, found = 0, {}
        for count, counts in domains:
            number += count
            found.update(counts)
        total.domains.update(dict(largest(found.items())))
        if number > DOMAINS_KEPT:
            total.notes["domains"] = number
        return cls(tally=total, shards=sorted(shards, key=lambda shard: shard.name))

    def to_json(self) -> dict[str, Any]:
        """Plain dicts and lists; `from_json` reads them."""
        return {
            "tally": self.tally.to_json(),
            "shards": [dataclasses.asdict(shard) for shard in self.shards],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Result":
        """The result that `to_json` made this of."""
        return cls(
            tally=Tally.from_json(value["tally"]),
            shards=[Shard(**shard) for shard in value["shards"]],
        )


def largest(counts: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """The domains with most pages; equal ones by name."""
    return sorted(counts, key=lambda item: (-item[1], item[0]))[:DOMAINS_KEPT]


class Job:
    """The output directory of a run on a cluster, on a file system that all share or in a bucket.

    Attributes:
      output: as workers write to it.
      complete: the tally of the run where its output is complete already, without samples.
    """

    def __init__(self, output: str | os.PathLike[str], run: Mapping[str, Any]):
        """Takes the directory.

        Args:
          output: new, or that of this run.
          run: from `output.describe_run`.

        Raises:
          InputError: it holds something else, or cannot be written to.
        """
        given = os.fspath(output)
        self.output = given.rstrip("/") if is_remote(given) else os.path.abspath(given)
        self._run = run
        self._path = open_path(self.output)
        self._workdir = None if is_remote(self.output) else Workdir(Path(self.output))
        self.complete: Tally | None = None
        found = _read_manifest(self._path)
        if found is not None:
            _refuse_other(self.output, found["run"], run)
            self._remove_work()
            self.complete = Tally.from_json(found["tally"])
        elif self._workdir is not None:
            self._workdir.open({**run, "driver": "beam"})
        else:
            _open_bucket(self._path, run)

    @property
    def result(self) -> str:
        """Where the pipeline puts its result."""
        return f"{self.output}/{WORK}/{RESULT}"

    def read_result(self) -> Result | None:
        """The result of a pipeline that has ended; None where none has."""
        path = open_path(self.result)
        if not path.exists():
            return None
        return Result.from_json(json.loads(path.read_bytes()))

    def finish(self, result: Result) -> None:
        """Writes the manifest, and removes what is not output."""
        content = manifest(self._run, result.shards, result.tally)
        write_whole(self._path / MANIFEST_NAME, content)
        self._remove_work()

    def close(self) -> None:
        """Lets the directory go."""
        if self._workdir is not None:
            self._workdir.close()

    def _remove_work(self) -> None:
        if self._workdir is not None:
            self._workdir.remove()
        else:
            remove_tree(self._path / WORK)


def _read_manifest(directory: AnyPath) -> dict[str, Any] | None:
    """As `read_manifest`, of a bucket too."""
    if isinstance(directory, Path):
        return read_manifest(directory)
    manifest_there = directory / MANIFEST_NAME
    with tempfile.TemporaryDirectory() as here:
        if manifest_there.exists():
            Path(here, MANIFEST_NAME).write_bytes(manifest_there.read_bytes())
        return read_manifest(Path(here))


def _refuse_other(output: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """As `refuse_other`, of a bucket too; a path has one slash where a URL has two."""
    try:
        refuse_other(Path(output), before, now)
    except InputError as error:
        raise InputError(str(error).replace(str(Path(output)), output)) from None


def _open_bucket(directory: AnyPath, run: Mapping[str, Any]) -> None:
    """As `Workdir.open`, without a lock."""
    begun = directory / WORK / _RUN
    if begun.exists():
        _refuse_other(str(directory), json.loads(begun.read_bytes()), run)
        return
    others = sorted(path.name for path in directory.iterdir()) if directory.exists() else []
    if others:
        raise InputError(
            f"--output {directory}: there is something in it ({others[0]}), and no unfinished run; "
            "give a new directory"
        )
    begun.parent.mkdir(parents=True, exist_ok=True)
    write_whole(begun, json.dumps(dict(run), indent=1, sort_keys=True).encode())
