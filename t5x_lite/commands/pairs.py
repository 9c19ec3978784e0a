r"""Training data of retrievers: pairs, synthesize requests, synthesize collect, mine, refresh.

Commands that make training pairs from text: pairs, synthesize requests, synthesize collect.

    requests    articles -> {"id", "lang", "text", "prompt"}; a generator model answers with
                {"id", "question"}
    collect     articles and the answers -> {"query", "pos": [the complete article], "id"}

The pairs have the format of `tasks.pairs` and of the command `mine`, in the order of the inputs.
The same inputs and seed give the same output. OUTPUT.report.json counts the pairs that each rule
dropped:

    pairs == kept + sum of dropped

Commands that mine hard negatives, from a finished search or during training: mine, refresh.

    mine("pairs.jsonl", output="mined.jsonl", checkpoint="work/retriever")
    mine("scifact", output="mined.jsonl", rankings="bm25.trec")    # BEIR
    refresh("work/run", passages=["corpus.jsonl"])

`mine` writes the input of `tasks.pairs`: {"query", "pos", "neg", "pos_ids", "neg_ids",
"pos_scores", "neg_scores"} and all other fields of the input line. OUTPUT.settings.json lists the
settings, and the number of candidates that each rule of `retrieval.mining` dropped. The passage
vectors and the search results are kept in OUTPUT.partial until the output is complete, so a killed
command resumes.

`refresh` searches for hard negatives with the checkpoints of a training run that uses them (ANCE):

    t5x-lite train CONFIG --workdir W --data.cache C --data.refresh.period 1000 \
        --data.refresh.directory W/refresh
    t5x-lite refresh W --passages corpus.jsonl          # meanwhile, here or on another machine

The result of a search is written when it is complete; a killed command repeats its last search.
"""

import contextlib
import hashlib
import itertools
import json
import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import tyro

from t5x_lite.commands.command import command
from t5x_lite.core.errors import InputError
from t5x_lite.core.files import LONGEST_LINE, made_directory, write_atomically, writing
from t5x_lite.core.jobs import resumable_directory
from t5x_lite.core.option_types import (
    SHARED,
    File,
    Files,
    Natural,
    OptionalDirectory,
    OptionalFile,
    OptionalNumber,
    Positive,
    SomeDirectory,
    Text,
    Texts,
)
from t5x_lite.core.options import OptionError
from t5x_lite.core.project import trusting_checkpoints
from t5x_lite.core.workers import counting, step
from t5x_lite.retrieval.mining import (
    Candidate,
    Chosen,
    EncoderSearch,
    Known,
    PairEncoder,
    Rules,
    choose,
)
from t5x_lite.retrieval.pairs import (
    PROMPT,
    Excerpts,
    Filters,
    Sieve,
    check,
    read_articles,
    read_questions,
    request_of,
    sampled_ids,
)

if TYPE_CHECKING:
    from t5x_lite.retrieval.pair_documents import PairReader
    from t5x_lite.retrieval.refresh_search import Asked, Inputs, Pool

_logger = logging.getLogger(__name__)


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
      languages: for translations, the languages of the two texts, such as en de; for other inputs,
        the language of documents without a language field; default: none.
      min_score: minimum score of a translation in a *.tsv file; lines with lower scores are
        dropped; default: no minimum.
      filters: filters that drop bad pairs, set by options such as --min-query-words and
        --bad-words.
      seed: random seed for the sentences that --rule ict samples.
      text: name of the column with the text in JSON lines and tables, or a template with column
        names in braces, such as "{title} {text}".
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
      excerpts: selection of articles and excerpts, set by options such as --number and --max-words.
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
      articles: article files, the same as in `t5x-lite synthesize requests`.
      answers: file with the generator's answers: JSON lines {"id", "question"}.
      output: output file with JSON lines {"query", "pos", "id", "lang"}, which training reads.
      min_words: minimum number of words of a question; shorter questions are dropped.
      max_words: maximum number of words of a question; longer questions are dropped.
      languages_by: language detector, langdetect or cld3, to drop questions that are not in their
        article's language; default: no detection.
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


_RULES = Rules()
_ENCODER = PairEncoder()


class _Ranked(NamedTuple):
    candidates: list[Candidate]
    answers: list[float | None]


@command
def mine(
    input: File,
    *,
    output: File,
    checkpoint: OptionalDirectory = None,
    rankings: OptionalFile = None,
    passages: Files = (),
    vectors: Files = (),
    split: Literal["train", "validation", "test"] = "train",
    rules: Annotated[Rules, SHARED] = _RULES,
    rescore: bool = False,
    encoder: Annotated[PairEncoder, SHARED] = _ENCODER,
) -> None:
    r"""Find hard negatives: passages ranked high for a query that are not among its positives.

    A passage with the id or the words of a positive, a passage with the words of the query, and a
    duplicate of another negative are never negatives. The same files and options give the same
    negatives. If the command is killed, run it again to resume.

    Example:
        t5x-lite mine --input pairs/train.jsonl --checkpoint work/encoder --passages corpus.jsonl \
            --output mined/train.jsonl

    Args:
      input: queries with positives: JSON lines {"query", "pos"}, or a directory in BEIR's format.
      output: output file: the input lines with the mined negatives ("neg"), which replace negatives
        of the input, and the ids and scores of the negatives. The settings are written to
        OUTPUT.settings.json.
      checkpoint: work directory or checkpoint directory of the encoder that searches for
        candidates, instead of --rankings.
      rankings: run file with the candidates, from bm25 search, search, fuse or rerank, instead of
        --checkpoint; its query ids must be the "id" fields of --input, or line numbers from 0.
      passages: passage files to take negatives from; default: the passages of the input.
      vectors: vector files of the passages, in the same order, from the encoder of --checkpoint;
        default: encode the passages.
      split: name of the split to read positives from, if --input is a BEIR directory.
      rules: rules that choose negatives, set by options such as --first, --negatives and --margin.
      rescore: replace the "pos_scores" of the input by the scores of this search; default: keep
        them.
      encoder: encoder of queries and passages, set by options such as --pooling, --query-prefix and
        --batch-size.
    """
    from t5x_lite.checkpoints.init import base_at
    from t5x_lite.data.formats.lines import writer
    from t5x_lite.retrieval.refresh_search import read_inputs

    if (checkpoint is None) == (rankings is None):
        raise OptionError(
            "`t5x-lite mine` requires exactly one of --checkpoint DIR and --rankings FILE"
        )
    if vectors and checkpoint is None:
        raise OptionError("--vectors needs --checkpoint, which encodes the queries")
    if output == "-":
        raise InputError(
            "--output must be a file, but is standard output; the settings are written to "
            "OUTPUT.settings.json"
        )
    with (
        trusting_checkpoints(encoder.trust_project),
        base_at(encoder.base),
        contextlib.ExitStack() as held,
    ):
        inputs = read_inputs(input, passages=passages, split=split)
        made_of: dict[str, Any] = {"input": inputs.digest, "pool": inputs.pool.identity()}
        if checkpoint is None:
            assert rankings is not None
            made_of["source"] = {"run": _digest_of(rankings)}
            found = _of_run(rankings, inputs, rules)
        else:
            made_of["source"] = encoder.identity(checkpoint, vectors)
            identity = {**made_of, "last": rules.last}
            folder = held.enter_context(
                resumable_directory(output, identity=identity, content="the vectors", scratch=True)
            )
            search = EncoderSearch(checkpoint, inputs, encoder, vectors=vectors, folder=folder)
            found = _of_search(search, inputs, rules)
        report = _Report()
        with writing(output):
            held.enter_context(made_directory(Path(output).parent))
        with writer(output) as file:
            for record in _records(inputs, found, rules, report, rescore=rescore):
                file.write(record)
            settings = {
                **made_of,
                "passages": len(inputs.pool),
                "rules": asdict(rules),
                "rescore": rescore,
                "report": report.as_json(),
            }
            header = json.dumps(settings, indent=1)
            write_atomically(Path(f"{output}.settings.json"), header.encode() + b"\n")
        report.tell(output)


def _digest_of(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"run file {path} cannot be read ({error.strerror})") from error


def _of_run(path: str, inputs: "Inputs", rules: Rules) -> Iterator[_Ranked]:
    from t5x_lite.data.formats.rankings import read_run

    rankings: dict[str, list[Candidate]] = {}
    scores: dict[str, dict[int, float | None]] = {}
    places = {one.id: one for one in inputs.asked}
    if len(places) < len(inputs.asked):
        raise InputError('two input lines have the same query id; give each line a different "id"')
    for ranking in read_run(path):
        if ranking.query not in places:
            raise InputError(
                f"run file {path} has the query {ranking.query!r}, but --input does not contain "
                "this query"
            )
        found = []
        for one in ranking.documents:
            number = inputs.pool.number(one.document)
            if number is None:
                raise InputError(
                    f"run file {path} has the document {one.document!r}, but the passages do "
                    "not contain this document"
                )
            if one.score is None and rules.scored:
                raise InputError(
                    f"run file {path} has no scores, but --margin, --relative-margin, "
                    "--min-score and --max-score need them; give a run in TREC format"
                )
            found.append(Candidate(number, one.score))
        rankings[ranking.query] = found[: rules.last]
        answers = {number for number in places[ranking.query].positives if number is not None}
        scores[ranking.query] = {number: score for number, score in found if number in answers}
    if not rankings:
        raise InputError(f"run file {path} contains no ranking")
    for one in inputs.asked:
        own = scores.get(one.id, {})
        answers = [
            before if number is None else own.get(number, before)
            for number, before in zip(one.positives, one.scores, strict=True)
        ]
        yield _Ranked(rankings.get(one.id, []), answers)


def _of_search(search: EncoderSearch, inputs: "Inputs", rules: Rules) -> Iterator[_Ranked]:
    best = search.run(depth=min(rules.last, len(inputs.pool)))
    answers = search.scores_of_answers()
    for scores, rows, own in zip(best.scores, best.rows, answers, strict=True):
        pairs = zip(rows.tolist(), scores.tolist(), strict=True)
        yield _Ranked([Candidate(row, score) for row, score in pairs if row >= 0], [*own])


def _records(
    inputs: "Inputs", rankings: Iterable[_Ranked], rules: Rules, report: "_Report", *, rescore: bool
) -> Iterator[dict[str, Any]]:
    from t5x_lite.retrieval.refresh_search import digest

    answers, digests = inputs.answers_by_query(), inputs.digests_by_query()
    texts = inputs.texts_by_query()
    for one, ranked in zip(inputs.asked, rankings, strict=True):
        scores = [score for score in ranked.answers if score is not None]
        known = Known(
            numbers=answers[one.key],
            digests=digests[one.key],
            own=frozenset((digest(one.query), digest(one.prompted))),
            lowest=min(scores) if len(scores) == len(one.positives) else None,
            texts=texts[one.key],
        )
        chosen = choose(one.id, ranked.candidates, known, inputs.pool, rules)
        report.add(chosen, rules, replaced=bool(one.record.get("neg")))
        yield _record(one, ranked, chosen, inputs.pool, rescore=rescore)


def _record(
    one: "Asked", ranked: _Ranked, chosen: Chosen, pool: "Pool", *, rescore: bool
) -> dict[str, Any]:
    record = {key: value for key, value in one.record.items() if not key.startswith("neg")}
    record["neg"] = [pool.text(number) for number in chosen.numbers]
    record["pos_ids"], record["neg_ids"] = (
        [*one.names],
        [pool.name(number) for number in chosen.numbers],
    )
    record["pos_scores"], record["neg_scores"] = ranked.answers, chosen.scores
    if one.record.get("pos_scores") is not None and not rescore:
        negatives, scores = one.record.get("neg", []), one.record.get("neg_scores")
        known = dict(zip(negatives, scores or [None] * len(negatives), strict=True))
        record["pos_scores"] = one.record["pos_scores"]
        record["neg_scores"] = [known.get(text) for text in record["neg"]]
    if None in one.names:
        del record["pos_ids"], record["neg_ids"]
    return record


class _Report:
    def __init__(self):
        self._queries = self._negatives = self._few = self._none = self._filled = 0
        self._replaced = 0
        self._dropped: Counter[str] = Counter()

    def add(self, chosen: Chosen, rules: Rules, *, replaced: bool) -> None:
        self._replaced += replaced
        num = len(chosen.numbers) - chosen.filled
        self._queries += 1
        self._negatives += num
        self._filled += chosen.filled
        self._few += num < rules.negatives
        self._none += num == 0
        self._dropped.update(chosen.dropped)

    def as_json(self) -> dict[str, Any]:
        return {
            "queries": self._queries,
            "negatives": self._negatives,
            "filled": self._filled,
            "queries_with_too_few": self._few,
            "queries_with_none": self._none,
            "dropped": dict(sorted(self._dropped.items())),
        }

    def tell(self, output: str) -> None:
        dropped = [f"{num} {why}" for why, num in sorted(self._dropped.items())]
        _logger.info(
            "%s: wrote %d queries with %d mined and %d random negatives; dropped candidates by "
            "rule: %s",
            output,
            self._queries,
            self._negatives,
            self._filled,
            ", ".join(dropped) or "none",
        )
        if self._replaced:
            _logger.warning(
                "%d queries of --input had negatives, which the mined negatives replace; to train "
                'on both, add the earlier negatives to the field "neg" of the output',
                self._replaced,
            )
        if self._few:
            _logger.warning(
                "%d queries have fewer mined negatives than --negatives, and %d queries have "
                "no mined negative; if there are few passages, lower --first and --last, or add "
                "--fill random",
                self._few,
                self._none,
            )


@command
def refresh(
    workdir: SomeDirectory,
    *,
    passages: Files,
    batch_size: Positive = 32,
    once: bool = False,
    trust_project: bool = False,
) -> None:
    """Search for hard negatives with each new checkpoint of a running training (ANCE).

    The training run must set --data.refresh.period. Training waits for a search that is late, so
    the negatives of a step do not depend on the speed of this command. The command ends after the
    last search that the run needs.

    Example:
        t5x-lite refresh work/ance --passages corpus.jsonl

    Args:
      workdir: work directory of the training run that uses the negatives.
      passages: passage files to search for negatives.
      batch_size: number of texts per batch.
      once: process the existing checkpoints and exit; default: wait for new checkpoints.
      trust_project: allow the checkpoint's config to import Python classes from outside of
        t5x_lite.
    """
    from t5x_lite.config import load
    from t5x_lite.data.batches import open_sources
    from t5x_lite.data.cache import refreshes
    from t5x_lite.data.config import text_lengths
    from t5x_lite.data.vocabularies.loading import load_vocabulary
    from t5x_lite.retrieval import refresh_search

    if not passages:
        raise OptionError("--passages needs at least one file")
    with trusting_checkpoints(trust_project):
        experiment = load(str(Path(workdir) / "config.json"))
        data = experiment.data
        if not data.refresh.period:
            raise InputError(
                f"the config of work directory {workdir} does not set data.refresh.period, so "
                "training with this config refreshes no negatives"
            )
        vocabulary = load_vocabulary(data.vocabulary, extra_ids=data.extra_ids)
        pool = refresh_search.tokenized_passages(data, vocabulary, passages)
        (source,) = open_sources(data, vocabulary, split="train")
        cache = source.cache
        assert cache is not None
        length = text_lengths(data)["document"]
        examples = refresh_search.examples_of(cache.split("train"))
        queries = refresh_search.CachedQueries(examples, pool, length=length)
        queries.tell()
        for step in refresh_search.needed_steps(data.refresh, experiment.steps):
            if refreshes.is_whole(data.refresh.directory, step):
                continue
            if not refresh_search.wait_for(workdir, step, once=once):
                return
            started = time.monotonic()
            numbers = refresh_search.search(
                data.refresh, workdir, step, pool, queries, batch_size=batch_size
            )
            top, digest = data.refresh.top, cache.digest
            settings = {"top": top, "passages": len(pool), "cache": digest}
            refreshes.write(data.refresh.directory, step, numbers, settings=settings)
            _logger.info(
                "searched with the checkpoint of step %d in %.0f s",
                step,
                time.monotonic() - started,
            )
