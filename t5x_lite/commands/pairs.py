"""Commands that make training pairs from text: pairs, synthesize requests, synthesize collect.

    requests    articles -> {"id", "lang", "text", "prompt"}; a generator model answers with
                {"id", "question"}
    collect     articles and the answers -> {"query", "pos": [the complete article], "id"}

The pairs have the format of `tasks.pairs` and of the command `mine`, in the order of the inputs.
The same inputs and seed give the same output. OUTPUT.report.json counts the pairs that each rule
dropped:

    pairs == kept + sum of dropped
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
    """Make query-passage pairs from unlabeled text by a rule, and filter them.

    The rules are title_body, title_abstract, question_answer, instruction_output, heading_section,
    sentences, ict, code_docstring and parallel.

    OUTPUT.report.json counts the pairs that each filter dropped. The same files and options give
    the same pairs. If the command is killed, run it again to resume.

    Example:
        t5x-lite pairs --input corpus.jsonl --rule title_body --output pairs/train.jsonl

    Args:
      input: input documents: WET or WARC files, directories or lists (*.paths) of them; JSON lines,
        Parquet or Arrow; text files with blank lines between documents; directories and patterns of
        these files; hf://NAME or tfds://NAME. For --rule parallel, either two text files that are
        translations line by line, or a *.tsv file with the columns source and target, or score,
        source and target, or the columns of NLLB.
      output: output file with JSON lines {"query", "pos", "source", "lang"}, which training reads.
      rule: name of the rule that makes queries and passages from a document, such as title_body.
      languages: the two languages of aligned files or of *.tsv; for other inputs, the language of
        records without a language field; default: none.
      min_score: minimum score of a line in *.tsv; other lines are dropped; default: no minimum.
      filters: settings of the filters that drop bad pairs (`Filters`), one option each.
      seed: random seed with which the rule ict samples sentences.
      text: column with the text in JSON lines and tables, or a template with columns in braces.
    """
    from t5x_lite.core.jobs import resumable_writer
    from t5x_lite.data.formats.documents import TEXT, as_template
    from t5x_lite.retrieval.pair_documents import PairReader

    if not input:
        raise OptionError("--input needs at least one file")
    if output == "-":
        raise InputError(
            "--output must be a file, but is standard output; the report is written to "
            "OUTPUT.report.json"
        )
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
                f"input {input[0]}: the rule {rule} found no pair in {reader.num} "
                f"documents{reader.fields()}"
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
        "%s: wrote %d of %d pairs from %d documents; dropped pairs by filter: %s",
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
    """Write requests for a generator model, which asks it for questions about long articles.

    Example:
        t5x-lite synthesize requests --articles articles.jsonl --output requests.jsonl

    Args:
      articles: article files: JSON lines {"id", "text"}, optionally with "title" and "lang".
      output: output file with JSON lines {"id", "lang", "text", "prompt"}, one request per article.
      prompt: file with the template of the request, in which {text} is replaced by an excerpt of
        the article; default: a built-in template.
      excerpts: options that select the articles and the excerpts of articles.
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
                dropped["too short, or not sampled"] += 1
                continue
            request = request_of(article, excerpts, template)
            if request is None:
                dropped["too short"] += 1
                continue
            file.write(request)
        if num == dropped.total():
            raise InputError(
                f"articles {articles[0]}: none of {num} articles has {excerpts.min_words} "
                "words; give longer articles, or lower --min-words"
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
    r"""Make training pairs of the questions that a generator model wrote and their articles.

    Example:
        t5x-lite synthesize collect --articles articles.jsonl --answers answers.jsonl \
            --output long/train.jsonl

    Args:
      articles: the article files that were given to `t5x-lite synthesize requests`.
      answers: file with the generator's answers: JSON lines {"id", "question"}.
      output: output file with JSON lines {"query", "pos", "id", "lang"}, which training reads.
      min_words: minimum number of words of a question; shorter questions are dropped.
      max_words: maximum number of words of a question; longer questions are dropped.
      languages_by: language detector, langdetect or cld3; questions in a language other than the
        article's are dropped; default: no detection.
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
                f"answers {answers}: an answer has the id {min(questions)!r}, but no article "
                "has this id"
            )
        if not kept:
            raise InputError(
                f"answers {answers}: every question was dropped, by reason: {dict(dropped)}"
            )
        _report(output, {"answers": kept + dropped.total(), "kept": kept}, dropped)


def _template(path: str) -> str:
    from t5x_lite.data.formats.lines import read_whole

    try:
        text = read_whole(path, most=LONGEST_LINE).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"prompt template {path} cannot be read ({error})") from error
    if "{text}" not in text:
        raise InputError(
            f"prompt template {path} must contain {{text}}, which is replaced by the excerpt"
        )
    return text


def _report(output: str, counts: Mapping[str, int], dropped: Counter[str]) -> None:
    report = {**counts, "dropped": dict(sorted(dropped.items()))}
    if output != "-":
        _write_report(output, report)
    _logger.info("%s: %s", output, report)


def _write_report(output: str, report: Mapping[str, Any]) -> None:
    content = json.dumps(report, indent=1, ensure_ascii=False).encode() + b"\n"
    write_atomically(Path(f"{output}.report.json"), content)
