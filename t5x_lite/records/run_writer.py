"""A run that is written a chunk of queries at a time, and that a killed command goes on with.

    with run_writer("run.trec", identity={"index": "corpus.bm25"}, chunk=64) as file:
        for rankings in found_after(file.done):     # 64 at a time, the last time perhaps fewer
            file.write(rankings)

The rankings are collected as JSON lines, one a query (`records.resumable`), in run.trec.jsonl; of
TREC's and MS MARCO's forms the file of the last name is made of them at the end.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from t5x_lite.records import json_lines
from t5x_lite.records.resumable import ResumableWriter, is_resumable, resumable_writer
from t5x_lite.records.run_files import (
    Ranking,
    RunFormat,
    check_tag,
    format_of,
    read_run,
    run_lines,
    write_run,
)


class RunWriter:
    """Takes rankings.

    Attributes:
      done: rankings that are written, those of an earlier process included.
    """

    def __init__(self, file: ResumableWriter | json_lines.Writer, form: tuple[RunFormat, str]):
        self._file, self._form, self.done = file, form, file.done

    def write(self, rankings: Sequence[Ranking]) -> None:
        """Writes the rankings of a chunk of queries."""
        if isinstance(self._file, ResumableWriter):
            self._file.write(
                *(
                    {
                        "query": ranking.query,
                        "documents": [one.document for one in ranking.documents],
                        "scores": [one.score for one in ranking.documents],
                    }
                    for ranking in rankings
                )
            )
        else:
            format, tag = self._form
            self._file.write_text("".join(run_lines(rankings, format=format, tag=tag)))
        self.done += len(rankings)


@contextlib.contextmanager
def run_writer(
    path: str,
    *,
    identity: Mapping[str, Any],
    chunk: int,
    format: RunFormat | None = None,
    tag: str = "t5x_lite",
) -> Iterator[RunWriter]:
    """Opens a run; it takes its name when it is whole.

    Args:
      path: the file; "-" and what is no ordinary file is written as it comes, and never gone on
        with.
      identity: what makes two commands the same, as JSON.
      chunk: rankings that are written at a time.
      format: None is what the name says.
      tag: TREC's name of the run.

    Raises:
      InputError: as `resumable_writer` and `write_run`.
    """
    check_tag(tag)
    kind = format_of(path, format)
    if not is_resumable(path):
        with json_lines.writer(path) as file:
            yield RunWriter(file, (kind, tag))
        return
    work = path if kind == "jsonl" else f"{path}.jsonl"
    with resumable_writer(work, identity={**identity, "format": kind}, chunk=chunk) as file:
        yield RunWriter(file, (kind, tag))
    if kind != "jsonl":
        write_run(path, read_run(work, format="jsonl"), format=kind, tag=tag)
        Path(work).unlink()
