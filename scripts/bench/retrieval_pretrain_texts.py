"""Texts and measures of retrieval_pretrain_study.py: what is read, ranked and counted."""

import argparse
import collections
import dataclasses
import json
import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t5x_lite.data.vocabularies.loading import load_vocabulary

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SHORT, SPAN_WORDS, SPANS = 32, 40, 8
"""Tokens of a query and of short rows; words of a passage; passages of a document."""


def sentences(text: str) -> list[str]:
    return [part for part in re.split(r"(?<=[.!?])\s+", " ".join(text.split())) if part]


def groups(text: str) -> Iterator[list[str]]:
    """Neighbouring sentences of about `SPAN_WORDS` words."""
    group: list[str] = []
    for sentence in sentences(text):
        group.append(sentence)
        if sum(len(each.split()) for each in group) >= SPAN_WORDS:
            yield group
            group = []


@dataclasses.dataclass
class Texts:
    """Tokens of everything; see the head of the file.

    Attributes:
      passages: that are trained on.
      documents: lists of neighbouring spans, one behind the other.
      pairs: (sentence, the rest of its passage).
      queries: held-out sentences.
      candidates: the passages that they are from, without them; number i answers query i.
      cranfield: its documents, queries and judgements.
    """

    passages: list[np.ndarray]
    documents: list[np.ndarray]
    pairs: list[tuple[np.ndarray, np.ndarray]]
    queries: list[np.ndarray]
    candidates: list[np.ndarray]
    cranfield: tuple[list[np.ndarray], list[np.ndarray], list[dict[int, int]]]


def read_cranfield(beir: Path) -> tuple[list[str], list[str], list[dict[int, int]]]:
    corpus = [json.loads(line) for line in (beir / "corpus.jsonl").read_text().splitlines()]
    texts = [c["text"].strip().removeprefix(c["title"].strip()).strip() for c in corpus]
    places = {c["_id"]: place for place, c in enumerate(corpus)}
    names = {}
    for line in (beir / "queries.jsonl").read_text().splitlines():
        record = json.loads(line)
        names[record["_id"]] = record["text"]
    judged: dict[str, dict[int, int]] = collections.defaultdict(dict)
    for line in (beir / "qrels" / "test.tsv").read_text().splitlines()[1:]:
        query, document, score = line.split("\t")
        if document in places:
            judged[query][places[document]] = int(score)
    asked = [name for name in names if any(s > 0 for s in judged[name].values())]
    return texts, [names[name] for name in asked], [judged[name] for name in asked]


def prepare(options: argparse.Namespace) -> tuple[Texts, Any]:
    """The texts and the vocabulary, always the same."""
    novels = [path.read_text(encoding="utf-8") for path in sorted(Path(options.prose).glob("*"))]
    grouped = [[g for g in groups(novel) if len(g) > 1] for novel in novels]
    held = [novel.pop() for novel in grouped for _ in range(min(len(novel) // 8, 400))]
    generator = random.Random(0)
    generator.shuffle(held)
    held = held[: options.candidates]
    trained = [group for novel in grouped for group in novel]
    cran_texts, cran_queries, judged = read_cranfield(Path(options.beir))
    path = Path(options.output) / "vocabulary" / "vocab.txt"
    if not path.exists():
        from tokenizers import BertWordPieceTokenizer

        path.parent.mkdir(parents=True, exist_ok=True)
        tokenizer = BertWordPieceTokenizer(lowercase=True)
        some = trained[:: max(1, len(trained) // 40_000)]
        tokenizer.train_from_iterator(
            [*(" ".join(group) for group in some), *cran_texts],
            vocab_size=options.vocabulary_size,
            special_tokens=list(SPECIAL),
            show_progress=False,
        )
        pieces = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
        path.write_text("\n".join(piece for piece, _ in pieces) + "\n", encoding="utf-8")
    vocabulary = load_vocabulary(str(path))
    cls, sep, length = SPECIAL.index("[CLS]"), SPECIAL.index("[SEP]"), options.length

    def rows(texts: Sequence[str], most: int = length) -> list[np.ndarray]:
        encoded = vocabulary.encode_batch(list(texts))
        return [np.array([cls, *ids[: most - 2], sep], np.int32) for ids in encoded]

    listed = [
        novel[at : at + SPANS] for novel in grouped for at in range(0, len(novel) - SPANS, SPANS)
    ]
    generator.shuffle(listed)
    documents = [
        np.concatenate(rows([" ".join(group) for group in document]))
        for document in listed[: options.documents]
    ]
    generator.shuffle(trained)
    pairs = trained[: options.pairs]
    some = [(g.pop(generator.randrange(len(g))), " ".join(g)) for g in map(list, pairs)]
    asked = [(g.pop(generator.randrange(len(g))), " ".join(g)) for g in map(list, held)]
    passages = [" ".join(group) for group in trained[: options.passages]]
    of_cranfield = [piece for text in cran_texts for piece in pieces_of(text)]
    found = Texts(
        passages=rows([*passages, *of_cranfield]),
        documents=documents,
        pairs=list(zip(rows([q for q, _ in some], SHORT), rows([p for _, p in some]), strict=True)),
        queries=rows([query for query, _ in asked[: options.queries]], SHORT),
        candidates=rows([rest for _, rest in asked]),
        cranfield=(rows(cran_texts), rows(cran_queries), judged),
    )
    return found, vocabulary


def pieces_of(text: str) -> list[str]:
    words = text.split()
    return [" ".join(words[at : at + SPAN_WORDS]) for at in range(0, len(words), SPAN_WORDS)]


def reciprocal_ranks(scores: np.ndarray) -> np.ndarray:
    """1 / rank of document i for query i, 0 beyond 10; ties count against it."""
    own = np.diagonal(scores)[:, None]
    ranks = np.sum(scores >= own, axis=1)
    return np.where(ranks <= 10, 1.0 / ranks, 0.0)


def cranfield_ndcg(scores: np.ndarray, judged: Sequence[Mapping[int, int]]) -> np.ndarray:
    found = []
    for row, judgements in zip(scores, judged, strict=True):
        top = np.argsort(-row, kind="stable")[:10].tolist()
        gains = [max(0, judgements.get(place, 0)) for place in top]
        best = sorted((max(0, s) for s in judgements.values()), reverse=True)[:10]
        found.append(discounted(gains) / discounted(best))
    return np.array(found)


def discounted(gains: Sequence[int]) -> float:
    return sum(gain / math.log2(2 + place) for place, gain in enumerate(gains))


def bm25(
    documents: Sequence[np.ndarray], queries: Sequence[np.ndarray], k1: float = 0.9, b: float = 0.4
) -> np.ndarray:
    """Scores [queries, documents] over pieces: idf * tf / (tf + k1 (1 - b + b |d| / mean))."""
    counts = [collections.Counter(document[1:-1].tolist()) for document in documents]
    sizes = np.array([sum(count.values()) for count in counts], np.float64)
    seen: collections.Counter[int] = collections.Counter()
    for count in counts:
        seen.update(count.keys())
    postings: dict[int, list[tuple[int, int]]] = collections.defaultdict(list)
    for place, count in enumerate(counts):
        for piece, number in count.items():
            postings[piece].append((place, number))
    norm = k1 * (1 - b + b * sizes / sizes.mean())
    scores = np.zeros((len(queries), len(documents)))
    for row, query in zip(scores, queries, strict=True):
        for piece in query[1:-1].tolist():
            idf = math.log(1 + (len(documents) - seen[piece] + 0.5) / (seen[piece] + 0.5))
            for place, number in postings[piece]:
                row[place] += idf * number / (number + norm[place])
    return scores


def paired(differences: np.ndarray) -> str:
    """Mean and bootstrap's standard error of a difference over queries."""
    rng = np.random.default_rng(0)
    number = len(differences)
    means = [differences[rng.integers(0, number, number)].mean() for _ in range(1000)]
    return f"{differences.mean():+.3f} ± {np.std(means):.3f}"


def with_wrong(pairs: Sequence[Any], *, share: float) -> list[Any]:
    """Pairs, of which a share has the passage of the next one of that share."""
    found = list(pairs)
    drawn = np.random.default_rng(7).permutation(len(found))[: round(share * len(found))]
    for at, after in zip(drawn, np.roll(drawn, 1), strict=True):
        found[at] = (pairs[at][0], pairs[after][1])
    return found
