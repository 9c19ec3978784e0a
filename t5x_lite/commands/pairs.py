"""Training data from text: pairs, synthesize requests, synthesize collect.

    requests    articles -> {"id", "lang", "text", "prompt"}, from which a generator makes
                {"id", "question"}
    collect     articles and these answers -> {"query", "pos": [the whole article], "id"}

All three write pairs that `tasks.pairs` and `mine` read, or requests for them, in the order of the
inputs; the outputs are functions of the inputs and the seed. OUTPUT.report.json lists how many
pairs each rule dropped; its counts add up:

    pairs == kept + the sum of dropped
"""

import itertools
import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from t5x_lite.commands.command import command
from t5x_lite.core.errors import InputError
from t5x_lite.core.files import LONGEST_LINE, write_atomically
from t5x_lite.core.option_types import (
    SHARED,
    File,
    Files,
    Natural,
    OptionalFile,
    OptionalNumber,
    Positive,
    Text,
    Texts,
)
from t5x_lite.core.options import OptionError
from t5x_lite.core.progress import counting, step
from t5x_lite.retrieval.pair_rules import Filters, Sieve
from t5x_lite.retrieval.synthesis import (
    PROMPT,
    Excerpts,
    check,
    read_articles,
    read_questions,
    request_of,
    sampled_ids,
)

if TYPE_CHECKING:
    from t5x_lite.retrieval.pair_documents import PairReader

Rule = Annotated[
    Literal[
        "title_body",
        "title_abstract",
        "question_answer",
        "instruction_output",
        "heading_section",
        "sentences",
        "ict",
        "code_docstring",
        "parallel",
    ],
    tyro.conf.arg(metavar="RULE"),
]
Identifier = Literal["langdetect", "cld3"] | None
_FILTERS = Filters()
_EXCERPTS = Excerpts()
_CHUNK = 1024

_logger = logging.getLogger(__name__)


@command
def pairs(
    input: Files,
    *,
    output: File,
    rule: Rule,
    languages: Texts = (),
    min_score: OptionalNumber = None,
    filters: Annotated[Filters, SHARED] = _FILTERS,
    seed: Natural = 0,
    text: Text = "{text}",
) -> None:
    """Make pairs of queries and passages from unlabeled text, by a rule and filters.

    RULE is title_body, title_abstract, question_answer, instruction_output, heading_section,
    sentences, ict, code_docstring or parallel.

    OUTPUT.report.json lists how many pairs each filter dropped. The same files give the same pairs;
    a killed command resumes.

    Example:
        t5x-lite pairs --input corpus.jsonl --rule title_body --output pairs/train.jsonl

    Args:
      input: WET or WARC files, directories or lists (*.paths) of them; JSON lines, Parquet, Arrow;
        text files with blank lines between documents; directories and patterns of these; hf://NAME
        or tfds://NAME. For parallel two text files may be translations line by line, or *.tsv has
        source TAB target, or score TAB source TAB target, or NLLB's columns.
      output: JSON lines {"query", "pos", "source", "lang"}, as training reads them.
      rule: rule that makes queries and passages from a document.
      languages: the two languages of aligned files or of *.tsv; for other inputs, one language for
        records without a language field.
      min_score: minimum score of a *.tsv line; lines below it are dropped.
      filters: filters of pairs.
      seed: random seed for sentences sampled by the rule ict.
      text: column with the text in JSON lines and tables, or a template with columns in braces.

    Raises:
      InputError: if a file or a line is wrong, the rule is unknown, or an unfinished output belongs
        to another command.
    """
    from t5x_lite.core.jobs import resumable_writer
    from t5x_lite.data.formats.documents import TEXT, as_template
    from t5x_lite.retrieval.pair_documents import PairReader

    if not input:
        raise OptionError("--input needs at least one file")
    if output == "-":
        raise InputError("--output must be a file: its report is written next to it")
    template = as_template(text)
    reader = PairReader(
        input, rule=rule, languages=languages, template=template, seed=seed, min_score=min_score
    )
    kept_by = {key: "" if value is None else value for key, value in asdict(filters).items()}
    identity = {
        "inputs": reader.files,
        "rule": rule,
        "languages": [*languages],
        "filters": kept_by,
        **({"seed": seed} if rule == "ict" else {}),
        **({} if min_score is None else {"min_score": min_score}),
        **({} if template == TEXT else {"text": text}),
    }
    sieve = Sieve(filters)
    with (
        counting("making pairs", unit="documents", steps=True),
        resumable_writer(output, identity=identity, chunk=_CHUNK) as file,
    ):
        # Repetitions depend on all earlier pairs, so inputs are read again from the first one.
        kept = itertools.islice(_kept(reader, sieve), file.done, None)
        while some := list(itertools.islice(kept, _CHUNK)):
            file.write(*some)
        if not file.done and not sieve.seen:
            raise InputError(
                f"{input[0]}: the rule {rule} found no pair in {reader.num} documents"
                f"{reader.fields()}"
            )
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
        _write_report(output, report)
    told = [f"{num} {why}" for why, num in sorted(sieve.dropped.items())]
    _logger.info(
        "%s: wrote %d of %d pairs from %d documents; dropped: %s",
        output,
        sieve.kept,
        sieve.seen,
        reader.num,
        ", ".join(told) or "none",
    )


def _kept(reader: "PairReader", sieve: Sieve) -> Iterator[dict[str, Any]]:
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


@command
def synthesize_requests(
    articles: Files,
    *,
    output: File,
    prompt: OptionalFile = None,
    excerpts: Annotated[Excerpts, SHARED] = _EXCERPTS,
) -> None:
    """Write requests for a generator to ask questions about long articles.

    Example:
        t5x-lite synthesize requests --articles articles.jsonl --output requests.jsonl

    Args:
      articles: JSON lines {"id", "text"}, optionally with "title" and "lang".
      output: JSON lines {"id", "lang", "text", "prompt"}.
      prompt: template file; {text} is replaced by the excerpt.
      excerpts: selection of articles and excerpts.

    Raises:
      InputError: a file or a line is wrong, or no article is long enough.
    """
    from t5x_lite.data.formats.lines import writer

    if not articles:
        raise OptionError("--articles needs at least one file")
    template = PROMPT if prompt is None else _template(prompt)
    sampled = sampled_ids(read_articles(articles), excerpts)
    num, dropped = 0, Counter[str]()
    counter = counting("writing requests", unit="articles")
    with counter as advance, writer(output) as file:
        for article in read_articles(articles):
            num += 1
            advance(1)
            if sampled is not None and article.id not in sampled:
                dropped["too short, or not drawn"] += 1
                continue
            request = request_of(article, excerpts, template)
            if request is None:
                dropped["too short"] += 1
                continue
            file.write(request)
        if num == dropped.total():
            raise InputError(
                f"{articles[0]}: none of {num} articles has {excerpts.min_words} words: give "
                "longer ones, or lower --min-words"
            )
        _report(output, {"articles": num, "requests": num - dropped.total()}, dropped)


@command
def synthesize_collect(
    articles: Files,
    *,
    answers: File,
    output: File,
    min_words: Positive = 3,
    max_words: Positive = 64,
    languages_by: Identifier = None,
) -> None:
    r"""Make pairs of the questions that a generator wrote and the whole articles.

    Example:
        t5x-lite synthesize collect --articles articles.jsonl --answers answers.jsonl \
            --output long/train.jsonl

    Args:
      articles: the article files that were passed to synthesize requests.
      answers: JSON lines {"id", "question"}.
      output: JSON lines {"query", "pos", "id", "lang"}, as training reads them.
      min_words: minimum words of a question.
      max_words: maximum words of a question.
      languages_by: detector, langdetect or cld3, that drops questions in a language other than the
        article's.

    Raises:
      InputError: if a file or a line is wrong, or an answer belongs to no article.
    """
    from t5x_lite.c4.cleaning import identifier
    from t5x_lite.data.formats.lines import writer

    if not articles:
        raise OptionError("--articles needs at least one file")
    questions = read_questions(answers)
    guess = identifier(languages_by) if languages_by else None
    dropped, kept = Counter[str](), 0
    counter = counting("making pairs", unit="articles")
    with counter as advance, writer(output) as file:
        for article in read_articles(articles):
            advance(1)
            question = questions.pop(article.id, None)
            if question is None:
                continue
            why = check(
                question,
                article.text,
                language=article.language,
                min_words=min_words,
                max_words=max_words,
                guess=guess,
            )
            if why:
                dropped[why] += 1
                continue
            kept += 1
            record = {"query": " ".join(question.split()), "pos": [article.text], "id": article.id}
            file.write({**record, **({"lang": article.language} if article.language else {})})
        if questions:
            raise InputError(
                f"{answers} has an answer to {min(questions)!r}, which the articles do not have"
            )
        if not kept:
            raise InputError(f"{answers}: no question is left; {dict(dropped)}")
        _report(output, {"answers": kept + dropped.total(), "kept": kept}, dropped)


def _template(path: str) -> str:
    from t5x_lite.data.formats.lines import read_whole

    try:
        text = read_whole(path, most=LONGEST_LINE).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from error
    if "{text}" not in text:
        raise InputError(f"{path}: must have {{text}}, where the excerpt goes")
    return text


def _report(output: str, counts: Mapping[str, int], dropped: Counter[str]) -> None:
    report = {**counts, "dropped": dict(sorted(dropped.items()))}
    if output != "-":
        _write_report(output, report)
    _logger.info("%s: %s", output, report)


def _write_report(output: str, report: Mapping[str, Any]) -> None:
    content = json.dumps(report, indent=1, ensure_ascii=False).encode() + b"\n"
    write_atomically(Path(f"{output}.report.json"), content)
