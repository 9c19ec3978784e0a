"""Steps of C4 for clusters, picklable cleaning rules, the result file, the output directory.

carried = CarriedRules(cleaning)    # on the machine that starts the job; pickled to the workers
rules = carried.unpack()            # on a worker

job = Job(output, description)      # the output directory, reserved for this run
job.result                          # path of the pipeline's Result; it exists once it has ended
job.finish(result)                  # the manifest, last

A step is a picklable object that processes an element and counts in a tally:

    work = Read(carried)             # pickled, and sent to a worker
    work.setup()
    for page in work("crawl.warc.wet.gz", tally): ...

This module does not depend on Beam.
"""

import dataclasses
import functools
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from t5x_lite.c4.config import Cleaning
from t5x_lite.c4.dedup import Rules
from t5x_lite.c4.output import (
    MANIFEST_NAME,
    WORK,
    Kind,
    Shard,
    Workdir,
    manifest,
    order_key,
    read_manifest,
    refuse_other,
    shard_of,
    shards_in,
    write_shard,
)
from t5x_lite.c4.pages import Page, Tally, normalize_url, page_rank, read_pages, url_digest
from t5x_lite.core.errors import InputError
from t5x_lite.core.remote import AnyPath, is_remote, open_path, remove_tree, write_whole

DOMAINS_KEPT = 1000
"""Maximum number of domains in a result; a complete crawl has millions of domains."""
CARRIED_BYTES = 1 << 22
_LISTS = ("bad_words", "domains", "urls")
RESULT, _RUN = "result.json", "run.json"


class CarriedRules:
    """Cleaning rules with the lists that they need, as one object that can be sent to workers.

    Workers cannot read local files, so short lists are sent with the rules. A list of more than 4
    MiB, such as OpenWebText's URLs, must have the same path on every worker.
    """

    def __init__(self, cleaning: Cleaning):
        self._cleaning = cleaning
        self._files = {name: _carried(name, getattr(cleaning, name)) for name in _LISTS}

    def unpack(self) -> Rules:
        """Return the rules on a worker, after writing their lists to a temporary directory."""
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
"""Key of the content of a list that is a single file, not a directory with a file per language."""


def _carried(field: str, path: str) -> dict[str, bytes]:
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
        raise InputError(
            f"cannot read the list {path} of cleaning.{field}: {error.strerror}"
        ) from error


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """Result of a C4 build on a cluster: page counts and written files.

    Attributes:
      tally: page counts of the complete build, with only the largest domains.
      shards: descriptions of all written files.
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
        """Combine the partial results of a C4 build on a cluster."""
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
        """Return the result as a JSON object."""
        return {
            "tally": self.tally.to_json(),
            "shards": [dataclasses.asdict(shard) for shard in self.shards],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Result":
        return cls(
            tally=Tally.from_json(value["tally"]),
            shards=[Shard(**shard) for shard in value["shards"]],
        )


def largest(counts: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return the domains with the most pages, at most `DOMAINS_KEPT`; ties are sorted by name."""
    return sorted(counts, key=lambda item: (-item[1], item[0]))[:DOMAINS_KEPT]


class Job:
    """Output directory of a C4 build on a cluster, in a shared file system or in a bucket.

    Attributes:
      output: path of the directory, as workers see it.
      complete: page counts if an earlier command completed the output, otherwise None.
    """

    def __init__(self, output: str | os.PathLike[str], run: Mapping[str, Any]):
        """Reserve an output directory for a C4 build."""
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
        """Path of the file in which the pipeline writes its result."""
        return f"{self.output}/{WORK}/{RESULT}"

    def read_result(self) -> Result | None:
        """Return the result of a finished pipeline; None if the pipeline has not finished."""
        path = open_path(self.result)
        if not path.exists():
            return None
        return Result.from_json(json.loads(path.read_bytes()))

    def finish(self, result: Result) -> None:
        """Write the manifest of the output, and remove temporary files."""
        content = manifest(self._run, result.shards, result.tally)
        write_whole(self._path / MANIFEST_NAME, content)
        self._remove_work()

    def close(self) -> None:
        """Release the output directory."""
        if self._workdir is not None:
            self._workdir.close()

    def _remove_work(self) -> None:
        if self._workdir is not None:
            self._workdir.remove()
        else:
            remove_tree(self._path / WORK)


def _read_manifest(directory: AnyPath) -> dict[str, Any] | None:
    if isinstance(directory, Path):
        return read_manifest(directory)
    manifest_there = directory / MANIFEST_NAME
    with tempfile.TemporaryDirectory() as here:
        if manifest_there.exists():
            Path(here, MANIFEST_NAME).write_bytes(manifest_there.read_bytes())
        return read_manifest(Path(here))


def _refuse_other(output: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    try:
        refuse_other(Path(output), before, now)
    except InputError as error:
        raise InputError(str(error).replace(str(Path(output)), output)) from None


def _open_bucket(directory: AnyPath, run: Mapping[str, Any]) -> None:
    """Reserve a directory in a bucket for a run, without a lock."""
    begun = directory / WORK / _RUN
    if begun.exists():
        _refuse_other(str(directory), json.loads(begun.read_bytes()), run)
        return
    others = sorted(path.name for path in directory.iterdir()) if directory.exists() else []
    if others:
        raise InputError(
            f"--output {directory} is not empty ({others[0]}) and has no unfinished run; give a "
            "new directory"
        )
    begun.parent.mkdir(parents=True, exist_ok=True)
    write_whole(begun, json.dumps(dict(run), indent=1, sort_keys=True).encode())


_COPY_BYTES = 1 << 24

Owner = tuple[bytes, int]
"""Type of the owner of a line or span: rank of its page, and index on the page."""
ShardKey = tuple[str, int]
"""Type of a shard's key: split and index of the shard."""


class Work:
    """Base class of a step of the C4 build, applied to each element on a cluster.

    Args:
      rules: cleaning rules of the build.
    """

    def __init__(self, rules: CarriedRules):
        self._carried = rules
        self._rules: Rules | None = None

    @property
    def rules(self) -> Rules:
        """The cleaning rules, available after `setup`."""
        assert self._rules is not None
        return self._rules

    def setup(self) -> None:
        """Load the rules on the worker."""
        self._rules = self._carried.unpack()

    def __call__(self, element: Any, tally: Tally) -> Iterator[Any]:
        """Yield the step's results for an element; add page counts to `tally`."""
        raise NotImplementedError


class Read(Work):
    """Step that reads the pages of a file, and filters them by length and domain."""

    def __call__(self, element: str, tally: Tally) -> Iterator[Page]:
        for page in read_pages(element, self.rules.cleaning, tally):
            kept = self.rules.before_urls(page, tally)
            if kept is not None:
                yield kept


class Clean(Work):
    """Step that keeps only the lines of a page that pass the cleaning rules."""

    def __call__(self, element: Page, tally: Tally) -> Iterator[Page]:
        kept = self.rules.after_urls(element, tally)
        if kept is not None:
            yield kept


class CleanNewest(Clean):
    """Step that selects the newest of all pages with one URL, and cleans its lines."""

    def __call__(self, element: tuple[bytes, Iterable[Page]], tally: Tally) -> Iterator[Page]:
        yield from super().__call__(self.rules.newest(element[1], tally), tally)


class Finish(Work):
    """Step that drops pages with bad words or in other languages than the config's."""

    def __call__(self, element: Page, tally: Tally) -> Iterator[Page]:
        kept = self.rules.finish(element, tally)
        if kept is not None:
            yield kept


class RemoveAndFinish(Finish):
    """Step that removes duplicate text from a page, then filters it by language and bad words."""

    def __call__(
        self, element: tuple[bytes, Mapping[str, Iterable[Any]]], tally: Tally
    ) -> Iterator[Page]:
        pages = sorted(element[1]["pages"], key=_rest)
        lost = frozenset(element[1]["lost"])
        for index, page in enumerate(pages):
            taken = range(len(self.rules.keys(page))) if index else lost
            kept = self.rules.remove(page, taken, tally)
            if kept is not None:
                yield from super().__call__(kept, tally)


class Keys(Work):
    """Step that yields a key of each different line or span of a page, to find duplicates."""

    def __call__(self, element: Page, tally: Tally) -> Iterator[tuple[bytes, Owner]]:
        first: dict[bytes, int] = {}
        for number, key in enumerate(self.rules.keys(element)):
            first.setdefault(key, number)
        rank = page_rank(element)
        for key, number in first.items():
            yield key, (rank, number)


def losers(element: tuple[bytes, Iterable[Owner]]) -> Iterator[Owner]:
    """Yield the occurrences of a line or span to remove: all except one."""
    smallest: Owner | None = None
    for owner in element[1]:
        if smallest is None:
            smallest = owner
        elif owner[0] != smallest[0]:  # pages of one rank count as one owner here
            yield max(owner, smallest)
            smallest = min(owner, smallest)


class ByShard:
    """Step that yields a page with the key of its output shard."""

    def __init__(self, cleaning: Cleaning, num_shards: int):
        self._rules, self._num_shards = Rules(cleaning), num_shards

    def __call__(self, element: Page) -> tuple[ShardKey, Page]:
        split = self._rules.split(element)
        digest = url_digest(normalize_url(element.url))
        return (split, shard_of(digest, shards_in(split, self._num_shards))), element


def empty_shards(
    language: str, validation_modulus: int, num_shards: int
) -> Iterator[tuple[ShardKey, None]]:
    """Yield the keys of all output shards of a language, so that empty shards are written too."""
    splits = [language or "train"]
    if validation_modulus:
        splits.append(f"{language}-validation" if language else "validation")
    for split in splits:
        for shard in range(shards_in(split, num_shards)):
            yield (split, shard), None


class Write(Work):
    """Step that writes the pages of an output shard to files, and describes each file."""

    def __init__(
        self, rules: CarriedRules, *, output: str, num_shards: int, kinds: tuple[Kind, ...]
    ):
        super().__init__(rules)
        self._output, self._num_shards, self._kinds = output, num_shards, kinds

    def setup(self) -> None:
        """Do nothing, because no rules are needed."""

    def __call__(
        self, element: tuple[ShardKey, Iterable[Page | None]], tally: Tally
    ) -> Iterator[Shard]:
        (split, shard), values = element
        pages = sorted((page for page in values if page is not None), key=_output_order)
        for page in pages:
            tally.wrote(split, page)
        write = functools.partial(
            write_shard,
            split=split,
            shard=shard,
            num_shards=shards_in(split, self._num_shards),
            pages=pages,
            kinds=self._kinds,
        )
        if not is_remote(self._output):
            yield from write(Path(self._output))
            return
        with tempfile.TemporaryDirectory() as directory:
            for written in write(Path(directory)):
                _copy(Path(directory, written.name), f"{self._output}/{written.name}")
                yield written


def _copy(source: Path, target: str) -> None:
    with source.open("rb") as file, open_path(target).open("wb") as copy:
        shutil.copyfileobj(file, copy, _COPY_BYTES)


def _rest(page: Page) -> tuple[str, str]:
    return page.content_length, page.content_type


def _output_order(page: Page) -> tuple[bytes, str, str]:
    return order_key(page), *_rest(page)
