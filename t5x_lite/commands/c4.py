"""The command c4, which builds C4 from files of Common Crawl on one machine or on a cluster."""

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from t5x_lite.c4.config import Cleaning, missing_lists
from t5x_lite.c4.config import preset as rules_of
from t5x_lite.commands.command import command
from t5x_lite.commands.options import PROG, before_beam, load_driver
from t5x_lite.core.errors import InputError
from t5x_lite.core.option_types import (
    Directory,
    Files,
    Number,
    OptionalFile,
    OptionalPositive,
    Overrides,
    Text,
)
from t5x_lite.core.options import In, OptionError, option_names, parse

if TYPE_CHECKING:
    from t5x_lite.c4.output import Kind
    from t5x_lite.c4.pages import Tally
    from t5x_lite.c4.reading import Input
    from t5x_lite.core.progress import Row

BYTES_OF_A_SHARD = 1 << 28
"""Bytes of stored input per output shard; a crawl of 8 TB gets 1024 shards, like released C4."""
MAX_SHARDS = 1024
_VALIDATION_PAGES = 10

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Rules:
    """Dataclass with one field `cleaning`, which gives the cleaning options their prefix."""

    cleaning: Cleaning


@command
def c4(
    input: Files,
    overrides: Overrides = (),
    *,
    output: Directory,
    preset: Literal["released", "paper"] = "released",
    variant: Literal["en", "en.noclean", "realnewslike", "webtextlike", "multilingual"] = "en",
    bad_words: OptionalFile = None,
    domains: OptionalFile = None,
    urls: OptionalFile = None,
    base: Text = "",
    num_shards: OptionalPositive = None,
    array_record: bool = False,
    workers: OptionalPositive = None,
    memory: Annotated[Number, In(0, 1 << 20, "()")] = 2.0,
    runner: Text = "local",
) -> dict[str, Any]:
    r"""Build C4 from Common Crawl WET or WARC files: clean, deduplicate, and report.

    The kept pages are written to OUTPUT in shards. report.html and stats.json count the dropped
    pages by reason, and manifest.json is written last. If the command is killed, run it again to
    resume. --cleaning.RULE VALUE changes a rule, such as --cleaning.min-words 3; the guide of C4
    lists the rules. Options of Apache Beam follow "--", with each --runner except local.

    Example:
        t5x-lite c4 --input crawl/*.warc.wet.gz --output c4 --bad-words en.txt
        t5x-lite c4 --input gs://B/wet.paths --output gs://B/c4 --runner DataflowRunner \
            -- --project=P --region=R --temp_location=gs://B/tmp

    Args:
      input: WET or WARC files (plain or .gz), file patterns, directories, gs:// or s3:// paths, or
        text files with one such path per line (*.paths, *.paths.gz or *.txt).
      overrides: cleaning rules as --cleaning.RULE VALUE; options of Apache Beam follow "--".
      output: output directory, which is new or contains unfinished output of the same command.
      preset: cleaning rules as in the released C4, or as in the first version of the paper.
      variant: variant of C4 to build, such as realnewslike or multilingual.
      bad_words: file with one bad word per line, or for the variant multilingual a directory of
        such files; pages with a bad word are dropped; default: keep these pages.
      domains: JSON file for the variant realnewslike: {domain: true, or a list of subdomains}.
      urls: file with one URL per line, for the variant webtextlike.
      base: prefix that is put before relative paths in a list of paths, such as s3://commoncrawl.
      num_shards: number of shards of the training split; default: in proportion to the input's
        size, with 1024 shards for a complete crawl.
      array_record: also write the pages as ArrayRecord files.
      workers: number of worker processes of --runner local; default: one per CPU core.
      memory: memory limit of deduplication in GiB, before it spills to disk; with --runner local.
      runner: "local" for processes on this machine, or the name of an Apache Beam runner, such as
        DirectRunner, DataflowRunner or FlinkRunner.

    Returns:
      The sizes of the corpus, which the command also prints.
    """
    if not input:
        raise OptionError("--input needs at least one file")
    if runner != "local" and workers is not None:
        raise OptionError(
            "--workers is supported only with --runner local; set the workers of Apache Beam "
            "by options after --"
        )
    changes, beam_options = before_beam(overrides, runner=runner)
    lists = {"bad_words": bad_words, "domains": domains, "urls": urls}
    given = {name: path for name, path in lists.items() if path is not None}
    cleaning = _changed(dataclasses.replace(rules_of(preset, variant), **given), changes)
    from t5x_lite.c4 import local
    from t5x_lite.c4.cleaning import load_counter
    from t5x_lite.c4.local import show_progress
    from t5x_lite.c4.reading import check_archives, expand_inputs
    from t5x_lite.core.progress import print_result
    from t5x_lite.report.c4 import write_report

    _check_lists(cleaning, variant)
    files = expand_inputs(input, base=base)
    check_archives(files)
    shards = num_shards or default_shards(files)
    kinds: tuple[Kind, ...] = ("json", "array_record") if array_record else ("json",)
    about = {
        "preset": preset,
        "variant": variant,
        "sentences": load_counter().name,
        "cleaning": dataclasses.asdict(cleaning),
    }

    def report(tally: "Tally") -> None:
        write_report(output, tally, about)

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
        tally = load_driver("t5x_lite.c4.beam", runner=runner, extras="c4,beam").run(
            files,
            output,
            cleaning,
            runner=runner,
            options=beam_options,
            num_shards=shards,
            kinds=kinds,
            report=report,
        )
    found = _summary(output, tally)
    if not found["pages_kept"]:
        _logger.warning(
            "the cleaning rules dropped every page; see the counts by reason in %s", found["report"]
        )
    _warn_of_empty_validation(found["pages"], cleaning.validation_modulus)
    print_result(found, _rows(found), indent=None)
    return found


def _changed(rules: Cleaning, changes: Sequence[str]) -> Cleaning:
    """Return the cleaning rules, changed by options such as --cleaning.min-words 3."""
    found, _ = parse(
        _Rules,
        changes,
        prog=f"{PROG} c4",
        default=_Rules(cleaning=rules),
        other_options=option_names(c4.options),
    )
    return found.cleaning


def _check_lists(cleaning: Cleaning, variant: str) -> None:
    """Raise InputError if the C4 variant lacks its list; warn if no bad words are given."""
    for name in missing_lists(cleaning, variant):
        if name != "bad_words":
            raise InputError(f"--variant {variant} needs a list of pages; pass --{name} FILE")
        _logger.warning(
            "no --bad-words FILE is set, so pages with bad words are kept, unlike in C4"
        )


def default_shards(files: "Sequence[Input]") -> int:
    """Return the number of training shards for the total size of the input files."""
    return max(1, min(MAX_SHARDS, sum(file.size for file in files) // BYTES_OF_A_SHARD))


def _summary(output: str, tally: "Tally") -> dict[str, Any]:
    from t5x_lite.report.c4 import REPORT

    read = tally.stages.get("read", {})
    pages = {split: counts["pages"] for split, counts in sorted(tally.splits.items())}
    return {
        "output": output,
        "pages_read": read.get("pages_in", 0),
        "pages_kept": sum(pages.values()),
        "pages": pages,
        "bytes": sum(counts["bytes"] for counts in tally.splits.values()),
        "damaged_records": tally.damage.total(),
        "report": f"{output.rstrip('/')}/{REPORT}",
    }


def _rows(found: Mapping[str, Any]) -> "Iterator[Row]":
    for name, value in found.items():
        if name != "pages":
            yield {"": name.replace("_", " "), " ": value}
    for split, pages in found["pages"].items():
        yield {"": f"pages of {split}", " ": pages}


def _warn_of_empty_validation(pages: Mapping[str, int], modulus: int) -> None:
    """Warn about each split without validation pages, and suggest an option that gives it some."""
    for split, kept in pages.items():
        validation = "validation" if split == "train" else f"{split}-validation"
        if modulus and kept and not split.endswith("validation") and not pages.get(validation):
            smaller = max(2, min(modulus - 1, kept // _VALIDATION_PAGES))
            _logger.warning(
                "split %s is empty, because it gets 1 in %d pages (chosen by URL) and only %d "
                "pages were kept; run again with --cleaning.validation-modulus %d and a new "
                "--output, or train with --evaluation.loss False",
                validation,
                modulus,
                kept,
                smaller,
            )
