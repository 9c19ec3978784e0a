"""`t5x-lite report`: the page of a run or of several, which needs no model."""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from t5x_lite.errors import InputError
from t5x_lite.options import suggesting
from t5x_lite.progress import print_result
from t5x_lite.report.compare import compare, compare_seeds
from t5x_lite.report.runs import write_report

_logger = logging.getLogger(__name__)


@suggesting
def report(
    workdir: str | Sequence[str], *, output: str | None = None, group: str | None = None
) -> Path:
    """Writes the HTML page of a work directory, or of several beside each other, and prints it.

    Args:
      workdir: one, or several to compare.
      output: the page to write. If None, it is report.html in the work directory, or of several
        compare.html next to the first of them.
      group: "seed" groups runs that differ in their seed only; mean and standard deviation of each
        group's metrics are printed, too.

    Returns:
      The path of the page.

    Raises:
      InputError: a directory is no run, or the page cannot be written.
    """
    directories = [workdir] if isinstance(workdir, str) else list(workdir)
    if not directories:
        raise InputError("report needs at least one work directory")
    several = len(directories) > 1
    if group is not None:
        if not several:
            raise InputError(
                f"--group {group} compares several runs, and {directories[0]} is one; give the "
                "work directory of each seed"
            )
        path, groups = compare_seeds(directories, output)
        print_result({"page": os.fspath(path), "groups": groups}, _seed_rows(groups))
        _logger.info("wrote %s", path)
        return path
    path = compare(directories, output) if several else write_report(directories[0], output)
    print(os.fspath(path))
    return path


def _seed_rows(groups: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The rows of a table: a metric of a group each; a star is what the page has in bold."""
    for group in groups:
        for metric, spreads in group["metrics"].items():
            row = {"group": group["group"], "metric": metric, "n": str(group["n"])}
            for when, title in (("best", "best"), ("last", "end")):
                spread = spreads[when]
                if spread is not None:
                    mark = "*" if spread["bold"] else ""
                    row[title] = f"{spread['mean']:.4f}{mark}"
                    row[f"sd of {title}"] = "" if spread["sd"] is None else f"{spread['sd']:.4f}"
            yield row
