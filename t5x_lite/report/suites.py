"""The page of a suite: a row for each set, and the mean."""

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from t5x_lite.errors import InputError
from t5x_lite.files import write_atomically
from t5x_lite.report import chart, page


def write_suite_page(path: Path, suite: str, result: Mapping[str, Any]) -> None:
    """Writes the page of the numbers of all sets.

    Args:
      path: the HTML file.
      suite: its name.
      result: "mean" by metric, "sets" by name and metric, and the "missing".

    Raises:
      InputError: it cannot be written.
    """
    mean, sets, missing = result["mean"], result["sets"], result["missing"]
    tiles = [("Sets", f"{len(sets):,}", f"{len(missing)} missing" if missing else "all")]
    tiles += [(name, chart.number(value), "mean") for name, value in mean.items()]
    rows = [
        [name, *(f"{value:.4f}" for value in values.values())]
        for name, values in [*sets.items(), ("mean", mean)]
    ]
    body = [page.facts(tiles), "<h2>Sets</h2>", page.table(["set", *mean], rows)]
    if missing:
        names = page.text(", ".join(missing))
        body.append(f'<p class="note">The mean is without the missing sets: {names}.</p>')
    written = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    document = page.page(suite.upper(), f"written {written}", body)
    try:
        write_atomically(path, document.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from error
