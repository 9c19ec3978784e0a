"""`t5x-lite c4`: C4 of files of Common Crawl, on this machine or on a cluster, and its report."""

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from t5x_lite.c4 import local
from t5x_lite.c4.config import Cleaning, missing_lists
from t5x_lite.c4.inputs import Input, expand_inputs
from t5x_lite.c4.output import Kind
from t5x_lite.c4.pages import Tally
from t5x_lite.c4.progress import show_progress
from t5x_lite.c4.reading import check_archives
from t5x_lite.c4.sentences import load_counter
from t5x_lite.errors import InputError
from t5x_lite.options import suggesting
from t5x_lite.progress import Row, print_result
from t5x_lite.report import c4 as c4_report
from t5x_lite.run.beam import load_driver

BYTES_OF_A_SHARD = 1 << 28
"""Of input as it is stored; a crawl of 8 TB then has the 1024 shards of the release."""
MAX_SHARDS = 1024

_logger = logging.getLogger(__name__)


@suggesting
def c4(
    inputs: Sequence[str],
    *,
    output: str,
    cleaning: Cleaning,
    preset: str = "released",
    variant: str = "en",
    base: str = "",
    num_shards: int | None = None,
    array_record: bool = False,
    workers: int | None = None,
    memory: float = 2.0,
    runner: str = "local",
    beam_options: Sequence[str] = (),
) -> dict[str, Any]:
    """Make C4 with a report, and print its sizes: a table on a terminal, a line of JSON elsewhere.

    Args:
      inputs: files, patterns, directories, lists of paths.
      output: a new directory, or that of this run, which then goes on.
      cleaning: the rules.
      preset: what they are called, for the report.
      variant: as `preset`; also which lists they must have.
      base: where relative paths of lists begin.
      num_shards: of the training split; None goes by the input's size.
      array_record: whether ArrayRecord files are written beside the JSON lines.
      workers: processes of the runner local; None is one for each core.
      memory: GiB that deduplication may hold, of the runner local.
      runner: "local", or one of Apache Beam.
      beam_options: of Beam, such as "--project=P".

    Returns:
      What is printed.

    Raises:
      InputError: an input, a list, the output or an option is wrong, or no input has a record.
    """
    _check_lists(cleaning, variant)
    files = expand_inputs(inputs, base=base)
    check_archives(files)
    shards = num_shards or default_shards(files)
    kinds: tuple[Kind, ...] = ("json", "array_record") if array_record else ("json",)
    about = {
        "preset": preset,
        "variant": variant,
        "sentences": load_counter().name,
        "cleaning": dataclasses.asdict(cleaning),
    }

    def report(tally: Tally) -> None:
        c4_report.write_report(output, tally, about)

    if runner == "local":
        with show_progress() as progress:
            tally = local.run(
                files,
                output,
                cleaning,
                workers=workers or 0,
                memory_limit=int(memory * 2**30),
                num_shards=shards,
                kinds=kinds,
                progress=progress,
                report=report,
            )
    else:
        tally = _on_beam(runner)(
            files,
            output,
            cleaning,
            runner=runner,
            options=beam_options,
            num_shards=shards,
            kinds=kinds,
            report=report,
        )
    found = summary(output, tally)
    if not found["pages_kept"]:
        _logger.warning("no page was kept; %s says why", found["report"])
    _warn_of_empty_validation(found["pages"], cleaning.validation_modulus)
    print_result(found, _rows(found), indent=None)
    return found


def _rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """The lines of the table on a terminal: each number, and each split's pages."""
    for name, value in found.items():
        if name != "pages":
            yield {"": name.replace("_", " "), " ": value}
    for split, pages in found["pages"].items():
        yield {"": f"pages of {split}", " ": pages}


_VALIDATION_PAGES = 10


def _warn_of_empty_validation(pages: Mapping[str, int], modulus: int) -> None:
    """Warn that a split has no validation pages, and name an option that gives it some."""
    for split, kept in pages.items():
        validation = "validation" if split == "train" else f"{split}-validation"
        if modulus and kept and not split.endswith("validation") and not pages.get(validation):
            smaller = max(2, min(modulus - 1, kept // _VALIDATION_PAGES))
            _logger.warning(
                "%s has no page (1 in %d of %d pages, by URL); for held-out pages, run again with "
                "--cleaning.validation-modulus %d and a new --output, or train with "
                "--evaluation.loss False",
                validation,
                modulus,
                kept,
                smaller,
            )


def _on_beam(runner: str) -> Any:
    return load_driver("t5x_lite.c4.beam", runner=runner, extras="c4,beam").run


def _check_lists(cleaning: Cleaning, variant: str) -> None:
    """Refuses a variant without the list that makes it; says that there is no list of bad words."""
    for name in missing_lists(cleaning, variant):
        if name != "bad_words":
            raise InputError(f"--variant {variant} needs a list: give --{name} FILE")
        _logger.warning("no --bad-words FILE: pages with bad words stay, which C4 drops")


def default_shards(files: Sequence[Input]) -> int:
    """Shards of the training split by the size of the input."""
    return max(1, min(MAX_SHARDS, sum(file.size for file in files) // BYTES_OF_A_SHARD))


def summary(output: str, tally: Tally) -> dict[str, Any]:
    """What a run gave, for people: pages read and written, and damaged records."""
    read = tally.stages.get("read", {})
    pages = {split: counts["pages"] for split, counts in sorted(tally.splits.items())}
    return {
        "output": output,
        "pages_read": read.get("pages_in", 0),
        "pages_kept": sum(pages.values()),
        "pages": pages,
        "bytes": sum(counts["bytes"] for counts in tally.splits.values()),
        "damaged_records": tally.damage.total(),
        "report": f"{output.rstrip('/')}/{c4_report.REPORT}",
    }
