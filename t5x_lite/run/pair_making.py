"""`t5x-lite pairs`: pairs of queries and passages from unlabelled text, by a rule and filters.

The output is what `tasks.pairs` and `mine` read, a pair a line: {"query", "pos", "source"} and
"lang". OUTPUT.report.json beside it says what each filter dropped; its counts add up:

    pairs == kept + the sum of dropped

A killed command goes on: it reads its inputs again from the first, since what is a repetition
depends on them, and writes only what is not there yet.
"""

import contextlib
import itertools
import json
import logging
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from t5x_lite.c4.config import Cleaning
from t5x_lite.c4.inputs import expand_inputs
from t5x_lite.c4.pages import Tally
from t5x_lite.c4.reading import read_pages
from t5x_lite.errors import InputError
from t5x_lite.files import LONGEST_LINE, write_atomically
from t5x_lite.progress import counting, step
from t5x_lite.records.compressed import plain_name
from t5x_lite.records.json_lines import read_examples
from t5x_lite.records.lines import read_lines
from t5x_lite.records.released_files import read_parallel
from t5x_lite.records.resumable import resumable_writer
from t5x_lite.retrieval.pair_filters import Filters, Sieve
from t5x_lite.retrieval.pair_rules import RULES, Document, Raw

_CHUNK = 1024
_USUAL = Filters()
_ARCHIVES = (".warc", ".wet")

_logger = logging.getLogger(__name__)


def make_pairs(
    inputs: Sequence[str],
    *,
    output: str,
    rule: str,
    languages: Sequence[str] = (),
    filters: Filters = _USUAL,
    seed: int = 0,
    min_score: float | None = None,
) -> None:
    """Writes a file of pairs.

    Args:
      inputs: WET and WARC files, directories or lists of them; *.jsonl; text files, whose documents
        are divided by blank lines. For the rule "parallel" two text files may be given, line by
        line translations of each other, or *.tsv with both texts in a line
        (`released_files.read_parallel`). All may be compressed.
      output: *.jsonl.
      rule: a name in `pair_rules.RULES`.
      languages: of two aligned files, or of the two texts of *.tsv; of all other inputs one, where
        these do not say it.
      filters: which pairs are kept.
      seed: of the sentences that the rule "ict" draws.
      min_score: the lowest score of a line of *.tsv that is kept; None keeps all.

    Raises:
      InputError: a file or a line is wrong, there is no such rule, or what is there of the output
        is of another command.
    """
    if rule not in RULES:
        raise InputError(f"there is no rule {rule!r}: give one of {', '.join(RULES)}")
    if output == "-":
        raise InputError("--output must be a file: its report stands beside it")
    reader = _Reader(inputs, rule=rule, languages=tuple(languages), seed=seed, min_score=min_score)
    identity = {
        "inputs": reader.files,
        "rule": rule,
        "languages": [*languages],
        "filters": asdict(filters),
        **({"seed": seed} if rule == "ict" else {}),
        **({} if min_score is None else {"min_score": min_score}),
    }
    sieve = Sieve(filters)
    with (
        counting("making pairs", unit="documents", steps=True),
        resumable_writer(output, identity=identity, chunk=_CHUNK) as file,
    ):
        kept = itertools.islice(_kept(reader, sieve), file.done, None)
        while some := list(itertools.islice(kept, _CHUNK)):
            file.write(*some)
        if not file.done and not sieve.seen:
            raise InputError(
                f"{inputs[0]}: the rule {rule} found no pair in {reader.num} documents"
            )
        _report(output, reader, sieve, identity)
    told = [f"{num} {why}" for why, num in sorted(sieve.dropped.items())]
    _logger.info(
        "%s: %d of %d pairs from %d documents; dropped: %s",
        output,
        sieve.kept,
        sieve.seen,
        reader.num,
        ", ".join(told) or "none",
    )


def _report(output: str, reader: "_Reader", sieve: Sieve, identity: dict[str, Any]) -> None:
    """Writes OUTPUT.report.json."""
    report = {
        "documents": reader.num,
        "documents_without_pair": reader.empty,
        "pairs": sieve.seen,
        "kept": sieve.kept,
        "dropped": dict(sorted(sieve.dropped.items())),
        "damaged": reader.damaged(),
        "samples": sieve.samples,
        **identity,
    }
    content = json.dumps(report, indent=1, ensure_ascii=False).encode() + b"\n"
    write_atomically(Path(f"{output}.report.json"), content)


def _kept(reader: "_Reader", sieve: Sieve) -> Iterator[dict[str, Any]]:
    for document, raws in reader:
        step(1)
        source = document.record.get("url") or document.record.get("source") or document.where
        for raw in raws:
            pair = sieve.keep(raw)
            if pair is not None:
                record = {"query": pair.query, "pos": [pair.passage], "source": source}
                if pair.languages[1]:
                    record["lang"] = "-".join(dict.fromkeys(pair.languages))
                yield record


class _Reader:
    """The documents of files with their pairs.

    Attributes:
      files: what is read: paths, sizes and times of the last change.
      num: documents read.
      empty: those of them in which the rule found nothing.
    """

    def __init__(
        self,
        inputs: Sequence[str],
        *,
        rule: str,
        languages: tuple[str, ...],
        seed: int,
        min_score: float | None,
    ):
        self._rule, self._languages, self._seed = RULES[rule], languages, seed
        self._min_score = min_score
        texts = [name for name in inputs if _kind(name) == "text"]
        columns = [name for name in texts if plain_name(name).endswith(".tsv")]
        self._columns = rule == "parallel" and len(columns) == len(inputs)
        self._aligned = rule == "parallel" and bool(texts) and not self._columns
        if self._aligned and (len(inputs) != 2 or len(texts) != 2 or columns):
            raise InputError(
                "the rule parallel reads JSON lines, *.tsv with two texts in a line, or two text "
                f"files that are translations of each other, line by line: got {len(inputs)} files"
            )
        if min_score is not None and not self._columns:
            raise InputError(
                "--min-score is of *.tsv with scores, read by --rule parallel: leave it out"
            )
        if min_score is not None and not math.isfinite(min_score):
            raise InputError(f"--min-score must be a finite number, got {min_score}")
        pair = self._aligned or self._columns
        if len(languages) != 2 * pair and (pair or len(languages) > 1):
            raise InputError(
                "--languages must be one, or the two of two aligned files or of *.tsv: got "
                f"{' '.join(languages) or 'none'}"
            )
        paths = []
        for name in inputs:
            archive = _kind(name) == "archive"
            paths += [one.path for one in expand_inputs([name])] if archive else [name]
        self._paths, self._tally = paths, Tally()
        self.files = [_identity(path) for path in paths]
        self.num = self.empty = 0

    def __iter__(self) -> Iterator[tuple[Document, list[Raw]]]:
        for document in self._documents():
            raws = list(self._rule(document._replace(seed=self._seed)))
            self.num += 1
            self.empty += not raws
            yield document, raws

    def damaged(self) -> int:
        """Records of archives that could not be read."""
        return sum(self._tally.damage.values())

    def _documents(self) -> Iterator[Document]:
        if self._aligned:
            yield from _aligned(*self._paths, languages=self._languages)
            return
        if self._columns:
            for path in self._paths:
                for where, source, target, _ in read_parallel(path, min_score=self._min_score):
                    texts = {"src": source, "tgt": target, "langs": [*self._languages]}
                    yield Document(where, texts)
            return
        own = {"lang": self._languages[0]} if self._languages else {}
        for path in self._paths:
            kind = _kind(path)
            if kind == "jsonl":
                for line in read_examples(path, fields=()):
                    yield Document(line.where, {**own, **line.record})
            elif kind == "archive":
                with contextlib.closing(read_pages(path, Cleaning(), self._tally)) as pages:  # pyright: ignore
                    for number, page in enumerate(pages):
                        record = {**own, "text": page.text, "url": page.url}
                        yield Document(f"{path}:{number}", record)
            else:
                yield from _paragraphs(path, own)


def _kind(name: str) -> str:
    """What is in a file, by its name: "jsonl", "archive" or "text"."""
    plain = plain_name(name)
    if plain.endswith((".jsonl", ".json", ".ndjson")):
        return "jsonl"
    lists = plain.endswith(".paths") or os.path.isdir(name)
    return "archive" if plain.endswith(_ARCHIVES) or lists or "*" in name else "text"


def _identity(path: str) -> list[Any]:
    if "://" in path:
        return [path]
    try:
        stat = os.stat(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    return [os.path.abspath(path), stat.st_size, stat.st_mtime_ns]


def _paragraphs(path: str, own: dict[str, str]) -> Iterator[Document]:
    """The documents of a text file, which blank lines divide."""
    lines: list[str] = []
    first = 1
    for number, line in enumerate(itertools.chain(read_lines([path]), [""]), start=1):
        if line.strip():
            first = first if lines else number
            lines.append(line)
        elif lines:
            yield Document(f"{path}:{first}", {**own, "text": "\n".join(lines)})
            lines = []


def _aligned(one: str, other: str, *, languages: tuple[str, ...]) -> Iterator[Document]:
    """The lines of two files, side by side.

    Raises:
      InputError: one has more.
    """
    pairs = itertools.zip_longest(
        read_lines([one], longest=LONGEST_LINE), read_lines([other], longest=LONGEST_LINE)
    )
    for number, (src, tgt) in enumerate(pairs, start=1):
        if src is None or tgt is None:
            raise InputError(
                f"{one if src is None else other} ends before line {number}, and the other file "
                "goes on: they must be translations line by line"
            )
        yield Document(f"{one}:{number}", {"src": src, "tgt": tgt, "langs": [*languages]})
