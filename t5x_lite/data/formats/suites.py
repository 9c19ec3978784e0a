"""Readers of released retrieval test sets: queries, passages, and judgments or answers.

    for test in sets_of("beir", "BEIR"):
        test.name, test.queries(), test.passages(), test.judgements()

    beir      DIR/SET/{corpus.jsonl, queries.jsonl, qrels/test.tsv}, or dev.tsv for MS MARCO; twelve
              sets of CQADupStack in DIR/cqadupstack/SET
    miracl    DIR/miracl-v1.0-LANG/{topics,qrels}/*-dev.tsv, DIR/miracl-corpus-v1.0-LANG/docs-*
    mldr      DIR/mldr-v1.0-LANG/{test,corpus}.jsonl.gz
    mkqa      DIR/mkqa.jsonl(.gz), 25 languages; passages from DIR/nq/corpus.jsonl
    mrtydi    DIR/mrtydi-v1.1-LANGUAGE/{topic.test.tsv, qrels.test.txt, collection/docs.jsonl.gz},
              or {test,corpus}.jsonl.gz there, as on the Hub
    narrativeqa    DIR/{qaps.csv, documents.csv, tmp/ID.content}, or the Hub's tables of the test
              split: find the story of a question among 355 full texts

In BEIR, documents with the query's id are excluded from its ranking. In the other suites, queries
and passages are numbered separately, so no document is excluded.

`mteb_results` has the names of these sets in MTEB, and the form of its result files.

Sources: Thakur et al. 2021; Zhang et al. 2023 (MIRACL); Longpre et al. 2021 (MKQA); Chen et al.
2024, arXiv:2402.03216 (MLDR, and the selection of MKQA's questions); Zhang et al. 2021 (Mr. TyDi);
Kočiský et al. 2018 (NarrativeQA) and mteb's NarrativeQARetrieval, which BGE-M3's paper follows
through Günther et al. 2023: each question of the test split is a query, and its story is relevant.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from t5x_lite.core.errors import InputError
from t5x_lite.data.formats.benchmark_files import read_csv
from t5x_lite.data.formats.lines import read_examples, read_whole
from t5x_lite.data.formats.pairs import Passage, read_passages
from t5x_lite.data.formats.rankings import Qrels, read_mkqa, read_qrels
from t5x_lite.data.formats.released_files import TYDI_LANGUAGES, tydi_files
from t5x_lite.data.formats.tables import Table, read_rows, table_splits

Suite = Literal["beir", "miracl", "mldr", "mkqa", "mrtydi", "narrativeqa"]

BEIR = (
    *("trec-covid", "bioasq", "nfcorpus", "nq", "hotpotqa", "fiqa", "signal1m", "trec-news"),
    *("robust04", "arguana", "webis-touche2020", "cqadupstack", "quora", "dbpedia-entity"),
    *("scidocs", "fever", "climate-fever", "scifact"),
)
"""Names of the 18 test sets that BEIR's mean score includes."""
_MIRACL = "ar bn de en es fa fi fr hi id ja ko ru sw te th yo zh"
_MLDR = "ar de en es fr hi it ja ko pt ru th zh"
_MKQA = "ar da de es fi fr he hu it ja km ko ms nl no pl pt ru sv th tr vi zh_cn zh_hk zh_tw"
MIRACL, MLDR, MKQA = (tuple(names.split()) for names in (_MIRACL, _MLDR, _MKQA))
METRICS: Mapping[Suite, Sequence[str]] = {
    "beir": ("ndcg@10", "recall@100", "capped_recall@100", "mrr@10", "hole@10"),
    "miracl": ("ndcg@10", "recall@100"),
    "mldr": ("ndcg@10", "recall@100"),
    "mkqa": ("top@20", "top@100"),
    "mrtydi": ("mrr@100", "recall@100"),
    "narrativeqa": ("ndcg@10", "recall@100"),
}
EXPECTED: Mapping[Suite, Sequence[str]] = {
    "beir": BEIR,
    "miracl": MIRACL,
    "mldr": MLDR,
    "mkqa": MKQA,
    "mrtydi": TYDI_LANGUAGES,
    "narrativeqa": ("narrativeqa",),
}
MTEB_METRICS = tuple(
    f"{kind}@{cut}"
    for kind in ("ndcg", "map", "recall", "precision", "mrr")
    for cut in (1, 3, 5, 10, 20, 100, 1000)
)
"""Metrics in MTEB's result files of retrieval tasks, named as in `metrics.runs`."""
_MTEB_BEIR = {
    "trec-covid": "TRECCOVID",
    "nfcorpus": "NFCorpus",
    "nq": "NQ",
    "hotpotqa": "HotpotQA",
    "fiqa": "FiQA2018",
    "arguana": "ArguAna",
    "webis-touche2020": "Touche2020",
    "quora": "QuoraRetrieval",
    "dbpedia-entity": "DBPedia",
    "scidocs": "SCIDOCS",
    "fever": "FEVER",
    "climate-fever": "ClimateFEVER",
    "scifact": "SciFact",
    "msmarco": "MSMARCO",
    "cqadupstack": "CQADupstackRetrieval",
    **{
        f"cqadupstack/{name}": f"CQADupstack{name.capitalize()}Retrieval"
        for name in (
            *("android", "english", "gaming", "gis", "mathematica", "physics", "programmers"),
            *("stats", "tex", "unix", "webmasters", "wordpress"),
        )
    },
}
_MTEB_SUITES: Mapping[Suite, tuple[str, str]] = {
    "miracl": ("MIRACLRetrieval", "dev"),
    "mldr": ("MultiLongDocRetrieval", "test"),
    "mrtydi": ("MrTidyRetrieval", "test"),
    "narrativeqa": ("NarrativeQARetrieval", "test"),
}
_CODES = (
    "ar:ara-Arab arabic:ara-Arab bn:ben-Beng bengali:ben-Beng de:deu-Latn en:eng-Latn "
    "english:eng-Latn es:spa-Latn fa:fas-Arab fi:fin-Latn finnish:fin-Latn fr:fra-Latn hi:hin-Deva "
    "id:ind-Latn indonesian:ind-Latn it:ita-Latn ja:jpn-Jpan japanese:jpn-Jpan ko:kor-Kore "
    "korean:kor-Kore pt:por-Latn ru:rus-Cyrl russian:rus-Cyrl sw:swa-Latn swahili:swa-Latn "
    "te:tel-Telu telugu:tel-Telu th:tha-Thai thai:tha-Thai yo:yor-Latn zh:zho-Hans"
)
_MTEB_LANGUAGES = {name: code for name, _, code in (x.partition(":") for x in _CODES.split())}
_MLDR_LANGUAGES = {**_MTEB_LANGUAGES, "ko": "kor-Hang", "zh": "cmn-Hans"}
_NEEDS: Mapping[Suite, str] = {
    "mrtydi": "mrtydi-v1.1-LANGUAGE with topic.test.tsv, qrels.test.txt and collection/docs.jsonl",
    "narrativeqa": "qaps.csv, documents.csv and tmp/*.content, or test tables of the Hub",
}
"""Hint on the files that a suite needs, for messages."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Judged:
    """Retrieval test set: queries, a corpus, and relevance judgments or answers.

    Attributes:
      name: name of the set, such as "scifact" or "cqadupstack/gaming".
      queries: function that returns the texts of the judged queries, by query id.
      passages: function that returns the passages of the corpus.
      judgements: function that returns the relevance judgments; None if `answers` is set.
      answers: function that returns the answers of questions; None if `judgements` is set.
      drops_same_ids: True to exclude a document with the query's id from the ranking.
    """

    name: str
    queries: Callable[[], dict[str, str]]
    passages: Callable[[], Iterator[Passage]]
    judgements: Callable[[], Qrels] | None = None
    answers: Callable[[], dict[str, list[str]]] | None = None
    drops_same_ids: bool = False

    @property
    def group(self) -> str:
        """Group of the test set; for example, "cqadupstack" for "cqadupstack/gaming"."""
        return self.name.partition("/")[0]


def mteb_results(
    suite: Suite, sets: Mapping[str, Mapping[str, float]], *, depth: int = 1000
) -> dict[str, dict[str, Any]]:
    """Return the content of MTEB's result files, by task name; skip test sets that MTEB lacks.

    The content has the form of mteb.TaskResult, version 2, without the nAUC values. Its main score
    is nDCG@10. "mteb_version" is None and "dataset_revision" is "release", because the metrics are
    computed here and on the released files.

    Args:
      suite: name of the suite.
      sets: metrics of each test set, by name; each set needs all `MTEB_METRICS`.
      depth: maximum number of ranked documents per query; metrics with a larger cutoff are skipped.

    Raises:
      InputError: if MTEB has no task for the suite, or `depth` is below 10.
    """
    if depth < 10:
        raise InputError(f"--mteb needs --depth 10 or more for nDCG@10, got {depth}")
    if suite != "beir" and suite not in _MTEB_SUITES:
        raise InputError(
            f"--mteb does not support the suite {suite}, because MTEB has no task with its "
            f"judgments; use beir, {', '.join(_MTEB_SUITES)}"
        )
    values = {
        name: {
            metric.replace("@", "_at_"): metrics[metric]
            for metric in MTEB_METRICS
            if int(metric.partition("@")[2]) <= depth
        }
        for name, metrics in sets.items()
    }
    parts = [name for name in _MTEB_BEIR if name.startswith("cqadupstack/")]
    if all(name in values for name in parts):
        values["cqadupstack"] = {
            metric: math.fsum(values[name][metric] for name in parts) / len(parts)
            for metric in values[parts[0]]
        }
    results: dict[str, dict[str, Any]] = {}
    for name, scores in values.items():
        subset, language = "default", "eng-Latn"
        if suite == "beir":
            task, split = _MTEB_BEIR.get(name), "dev" if name == "msmarco" else "test"
        else:
            task, split = _MTEB_SUITES[suite]
            if suite != "narrativeqa":
                subset = name
                language = (_MLDR_LANGUAGES if suite == "mldr" else _MTEB_LANGUAGES)[name]
        if task is None:
            continue
        result = results.setdefault(
            task,
            {
                "dataset_revision": "release",
                "task_name": task,
                "mteb_version": None,
                "scores": {split: []},
                "evaluation_time": None,
                "kg_co2_emissions": None,
            },
        )
        own = {"main_score": scores["ndcg_at_10"], "hf_subset": subset, "languages": [language]}
        result["scores"][split].append({**scores, **own})
    return results


def sets_of(suite: Suite, directory: str) -> list[Judged]:
    """Return the test sets of a benchmark suite in a directory, in the suite's order."""
    found = _FIND[suite](Path(directory))
    if not found:
        hint = f"; it needs {_NEEDS[suite]}" if suite in _NEEDS else ""
        if (Path(directory) / "corpus.jsonl").exists():
            hint = f"; {directory} is itself a data set, so pass the directory that contains it"
        raise InputError(
            f"directory {directory} has no test set of the suite {suite}, such as "
            f"{EXPECTED[suite][0]!r}{hint}"
        )
    return found


def _beir(directory: Path) -> list[Judged]:
    if not directory.is_dir():
        return []
    names = [path.name for path in sorted(directory.iterdir()) if path.is_dir()]
    names.sort(key=lambda name: (BEIR.index(name) if name in BEIR else len(BEIR), name))
    found = []
    for name in names:
        folders = [directory / name]
        if not (directory / name / "corpus.jsonl").exists():
            folders = [path for path in sorted((directory / name).iterdir()) if path.is_dir()]
        for folder in folders:
            split = folder / "qrels" / ("dev.tsv" if name == "msmarco" else "test.tsv")
            if split.is_file() and (folder / "corpus.jsonl").is_file():
                found.append(_beir_set(folder, split, str(folder.relative_to(directory))))
    return found


def _beir_set(folder: Path, split: Path, name: str) -> Judged:
    def judgements() -> Qrels:
        return read_qrels(str(split))

    def queries() -> dict[str, str]:
        return _asked(read_passages(str(folder / "queries.jsonl")), judgements(), split)

    return Judged(
        name=name,
        queries=queries,
        passages=lambda: read_passages(str(folder / "corpus.jsonl")),
        judgements=judgements,
        drops_same_ids=True,
    )


def _miracl(directory: Path) -> list[Judged]:
    found = []
    for language in MIRACL:
        folder = directory / f"miracl-v1.0-{language}"
        qrels = sorted(folder.glob("qrels/*-dev.tsv"))
        topics = sorted(folder.glob("topics/*-dev.tsv"))
        corpus = directory / f"miracl-corpus-v1.0-{language}"
        shards = sorted(corpus.glob("docs-*.jsonl*"), key=_number)
        if qrels and topics and shards:
            files = str(qrels[0]), str(topics[0]), [*map(str, shards)]
            found.append(_topics_set(language, *files))
    return found


def _number(path: Path) -> tuple[int, str]:
    match = re.search(r"docs-(\d+)", path.name)
    return (int(match.group(1)) if match else -1, path.name)


def _topics_set(language: str, qrels: str, topics: str, shards: Sequence[str]) -> Judged:
    def judgements() -> Qrels:
        return read_qrels(qrels)

    return Judged(
        name=language,
        queries=lambda: _asked(read_passages(topics, format="tsv"), judgements(), qrels),
        passages=lambda: (one for shard in shards for one in read_passages(shard)),
        judgements=judgements,
    )


def _mldr(directory: Path) -> list[Judged]:
    found = []
    for language in MLDR:
        folder = directory / f"mldr-v1.0-{language}"
        files = [next(iter(folder.glob(f"{name}.jsonl*")), None) for name in ("test", "corpus")]
        if None not in files:
            found.append(_mldr_set(language, *map(str, files)))
    return found


def _mldr_set(language: str, test: str, corpus: str) -> Judged:
    def rows() -> Iterator[tuple[str, str, list[str]]]:
        for where, record in read_examples(test, fields=("query_id", "query")):
            try:
                answers = [str(one["docid"]) for one in record["positive_passages"]]
            except (KeyError, TypeError) as error:
                raise InputError(
                    f'{where}: must have "positive_passages", a list of objects with "docid"'
                ) from error
            yield record["query_id"], record["query"], answers

    return Judged(
        name=language,
        queries=lambda: {name: text for name, text, _ in rows()},
        passages=lambda: read_passages(corpus),
        judgements=lambda: {name: dict.fromkeys(answers, 1) for name, _, answers in rows()},
    )


def _mkqa(directory: Path) -> list[Judged]:
    file = next(iter(sorted(directory.glob("mkqa.jsonl*"))), None)
    corpus = directory / "nq" / "corpus.jsonl"
    if file is None or not corpus.is_file():
        return []
    return [_mkqa_set(language, str(file), str(corpus)) for language in MKQA]


def _mkqa_set(language: str, file: str, corpus: str) -> Judged:
    return Judged(
        name=language,
        queries=lambda: {one.id: one.text for one in read_mkqa(file, language)},
        passages=lambda: read_passages(corpus),
        answers=lambda: {one.id: one.answers for one in read_mkqa(file, language)},
    )


def _mrtydi(directory: Path) -> list[Judged]:
    found = []
    for language in TYDI_LANGUAGES:
        files = tydi_files(str(directory), language, "test")
        if files.is_judged:
            qrels, topics, corpus = map(str, (files.qrels, files.topics, files.corpus))
            found.append(_topics_set(language, qrels, topics, [corpus]))
        elif files.rows is not None and files.corpus is not None:
            found.append(_mldr_set(language, str(files.rows), str(files.corpus)))
    return found


def _narrativeqa(directory: Path) -> list[Judged]:
    questions, stories = directory / "qaps.csv", directory / "documents.csv"
    tables = () if questions.is_file() else table_splits(str(directory)).get("test", ())
    if questions.is_file():
        asked = partial(_narrative_questions, questions)
        passages = partial(_narrative_stories, stories)
    elif tables:
        asked, passages = partial(_narrative_rows, tables), partial(_narrative_texts, tables)
    else:
        return []

    def queries() -> dict[str, str]:
        return {str(number): text for number, (text, _) in enumerate(asked())}

    def judgements() -> Qrels:
        return {str(number): {story: 1} for number, (_, story) in enumerate(asked())}

    return [Judged(name="narrativeqa", queries=queries, passages=passages, judgements=judgements)]


def _narrative_questions(file: Path) -> Iterator[tuple[str, str]]:
    found = 0
    for row in read_csv(file, columns=("document_id", "set", "question")):
        if row.fields["set"] == "test":
            found += 1
            yield row.fields["question"], row.fields["document_id"]
    if not found:
        raise InputError(f'{file} has no question of the test split (column "set")')


def _narrative_stories(file: Path) -> Iterator[Passage]:
    rows = read_csv(file, columns=("document_id", "set"))
    ids = [row.fields["document_id"] for row in rows if row.fields["set"] == "test"]
    paths = [file.parent / "tmp" / f"{name}.content" for name in ids]
    missing = [path for path in paths if not path.is_file()]
    if missing or not ids:
        raise InputError(
            f"{len(missing)} of the {len(ids)} stories of the NarrativeQA test split are missing, "
            f"such as {missing[0] if missing else file}; run NarrativeQA's download_stories.sh in "
            f"{file.parent}"
        )
    for name, path in zip(ids, paths, strict=True):
        content = read_whole(path)
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError:
            text = content.decode("latin-1")
        yield Passage(str(path), name, "", text)


def _narrative_rows(files: Sequence[Table]) -> Iterator[tuple[str, str]]:
    for where, story, question in _narrative_objects(files):
        if not isinstance(question.get("text"), str):
            raise InputError(f'{where}: "question" must have "text", a string')
        yield question["text"], story["id"]


def _narrative_texts(files: Sequence[Table]) -> Iterator[Passage]:
    seen: set[str] = set()
    for where, story, _ in _narrative_objects(files):
        if story["id"] not in seen:
            seen.add(story["id"])
            if not isinstance(story.get("text"), str):
                raise InputError(f'{where}: "document" must have "text", a string')
            yield Passage(where, story["id"], "", story["text"])


def _narrative_objects(
    files: Sequence[Table],
) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    found = 0
    for table in files:
        for row in read_rows(table, columns=("document", "question")):
            story, question = row.fields.get("document"), row.fields.get("question")
            if not isinstance(story, dict) or not isinstance(question, dict):
                raise InputError(f'{row.where}: must have the objects "document" and "question"')
            if not isinstance(story.get("id"), str):
                raise InputError(f'{row.where}: "document" must have "id", a string')
            found += 1
            yield row.where, story, question
    if not found:
        raise InputError(f"{files[0]} has no question")


_FIND: Mapping[Suite, Callable[[Path], list[Judged]]] = {
    "beir": _beir,
    "miracl": _miracl,
    "mldr": _mldr,
    "mkqa": _mkqa,
    "mrtydi": _mrtydi,
    "narrativeqa": _narrativeqa,
}


def _asked(passages: Iterator[Passage], judged: Qrels, where: object) -> dict[str, str]:
    """Return the texts of the queries that have judgments, by query id."""
    texts = {one.id: one.whole for one in passages if one.id in judged}
    if missing := judged.keys() - texts.keys():
        raise InputError(
            f"{where} has judgments of query {min(missing)!r}, but the query file has no text for "
            "this query"
        )
    return {query: texts[query] for query in judged}
