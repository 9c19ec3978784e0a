"""Test sets of retrieval, as they are released: what is asked, of which passages, and what answers.

    for test in sets_of("beir", "BEIR"):
        test.name, test.queries(), test.passages(), test.judgements()

    beir      DIR/SET/{corpus.jsonl, queries.jsonl, qrels/test.tsv}; of MS MARCO dev.tsv; twelve
              sets of CQADupStack in DIR/cqadupstack/SET
    miracl    DIR/miracl-v1.0-LANG/{topics,qrels}/*-dev.tsv, DIR/miracl-corpus-v1.0-LANG/docs-*
    mldr      DIR/mldr-v1.0-LANG/{test,corpus}.jsonl.gz
    mkqa      DIR/mkqa.jsonl(.gz), 25 languages; the passages of DIR/nq/corpus.jsonl

Documents that have a query's id are left out of BEIR's rankings, and never of the others': there,
queries and passages are numbered apart.

Sources: Thakur et al. 2021; Zhang et al. 2023 (MIRACL); Longpre et al. 2021 (MKQA); Chen et al.
2024, arXiv:2402.03216 (MLDR, and which questions of MKQA are asked).
"""

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from t5x_lite.errors import InputError
from t5x_lite.records.answer_files import read_mkqa
from t5x_lite.records.json_lines import read_examples
from t5x_lite.records.passages import Passage, read_passages
from t5x_lite.records.run_files import Qrels, read_qrels

Suite = Literal["beir", "miracl", "mldr", "mkqa"]

BEIR = (
    *("trec-covid", "bioasq", "nfcorpus", "nq", "hotpotqa", "fiqa", "signal1m", "trec-news"),
    *("robust04", "arguana", "webis-touche2020", "cqadupstack", "quora", "dbpedia-entity"),
    *("scidocs", "fever", "climate-fever", "scifact"),
)
"""The 18 sets of the mean."""
_MIRACL = "ar bn de en es fa fi fr hi id ja ko ru sw te th yo zh"
_MLDR = "ar de en es fr hi it ja ko pt ru th zh"
_MKQA = "ar da de es fi fr he hu it ja km ko ms nl no pl pt ru sv th tr vi zh_cn zh_hk zh_tw"
MIRACL, MLDR, MKQA = (tuple(names.split()) for names in (_MIRACL, _MLDR, _MKQA))
METRICS: Mapping[Suite, Sequence[str]] = {
    "beir": ("ndcg@10", "recall@100", "capped_recall@100", "mrr@10", "hole@10"),
    "miracl": ("ndcg@10", "recall@100"),
    "mldr": ("ndcg@10", "recall@100"),
    "mkqa": ("top@20", "top@100"),
}
EXPECTED: Mapping[Suite, Sequence[str]] = {
    "beir": BEIR,
    "miracl": MIRACL,
    "mldr": MLDR,
    "mkqa": MKQA,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Judged:
    """A set.

    Attributes:
      name: such as "scifact", or "cqadupstack/gaming".
      queries: reads the texts of the judged queries.
      passages: reads the corpus.
      judgements: reads what answers; None where answers do.
      answers: reads the answers of questions; None where judgements do.
      drops_same_ids: whether a document of a query's id is left out.
    """

    name: str
    queries: Callable[[], dict[str, str]]
    passages: Callable[[], Iterator[Passage]]
    judgements: Callable[[], Qrels] | None = None
    answers: Callable[[], dict[str, list[str]]] | None = None
    drops_same_ids: bool = False

    @property
    def group(self) -> str:
        """Sets of one group count as one in a mean."""
        return self.name.partition("/")[0]


def sets_of(suite: Suite, directory: str) -> list[Judged]:
    """The sets of a suite that a directory has, in the suite's order.

    Raises:
      InputError: it has none.
    """
    find = {"beir": _beir, "miracl": _miracl, "mldr": _mldr, "mkqa": _mkqa}[suite]
    found = find(Path(directory))
    if not found:
        raise InputError(f"{directory}: no set of {suite}, such as {EXPECTED[suite][0]!r}")
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
            found.append(_miracl_set(language, qrels[0], topics[0], shards))
    return found


def _number(path: Path) -> tuple[int, str]:
    match = re.search(r"docs-(\d+)", path.name)
    return (int(match.group(1)) if match else -1, path.name)


def _miracl_set(language: str, qrels: Path, topics: Path, shards: Sequence[Path]) -> Judged:
    def judgements() -> Qrels:
        return read_qrels(str(qrels))

    return Judged(
        name=language,
        queries=lambda: _asked(read_passages(str(topics)), judgements(), qrels),
        passages=lambda: (one for shard in shards for one in read_passages(str(shard))),
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
                raise InputError(f'{where}: must have "positive_passages" with "docid"') from error
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


def _asked(passages: Iterator[Passage], judged: Qrels, where: Path) -> dict[str, str]:
    """The texts of the queries that have judgements.

    Raises:
      InputError: one is missing.
    """
    texts = {one.id: one.whole for one in passages if one.id in judged}
    if missing := judged.keys() - texts.keys():
        raise InputError(f"{where} names the query {min(missing)!r}, which has no text")
    return {query: texts[query] for query in judged}
