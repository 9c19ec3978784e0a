"""MIRACL's topics, judgements and corpora as pairs, of all languages that a directory has.

    DIR/miracl-v1.0-LANG/topics/*-{train,dev}.tsv     query id TAB text
    DIR/miracl-v1.0-LANG/qrels/*-{train,dev}.tsv      query id, Q0, passage id, 0 or 1
    DIR/miracl-corpus-v1.0-LANG/docs-*.jsonl.gz       objects with "docid", "title", "text"

Passages that people judged not to answer a query are its negatives. Languages stand one after
another, in the order of their codes.

Source: the data cards of miracl/miracl and miracl/miracl-corpus; Zhang et al. 2023, "MIRACL".
"""

from t5x_lite.buckets.paths import DataPath, data_path
from t5x_lite.errors import InputError
from t5x_lite.records.marco_files import judged_pairs
from t5x_lite.records.pairs import Pairs

SPLITS = {"train": "train", "validation": "dev"}
_QUERIES, _CORPUS = "miracl-v1.0-", "miracl-corpus-v1.0-"


def splits(directory: str) -> tuple[str, ...]:
    """The splits that have topics, judgements and a corpus.

    Raises:
      InputError: there is none to train on.
    """
    found = tuple(split for split in SPLITS if directory and _languages(directory, split))
    if "train" not in found:
        raise InputError(
            f"data.directory {directory!r} has no language of MIRACL to train on: it must hold "
            f"{_QUERIES}LANG with topics/*-train.tsv and qrels/*-train.tsv, and "
            f"{_CORPUS}LANG with docs-*.jsonl.gz"
        )
    return found


def read_pairs(directory: str, split: str) -> list[Pairs]:
    """The queries of a split that some passage answers; each corpus is read through once.

    Raises:
      InputError: a file is wrong, a query or a passage that is judged is missing.
    """
    return [
        pairs
        for queries, qrels, corpus in _languages(directory, split)
        for pairs in judged_pairs(str(queries), str(qrels), corpus, negatives=True)
    ]


def _languages(directory: str, split: str) -> list[tuple[DataPath, DataPath, list[DataPath]]]:
    """The topics, the judgements and the corpus of each language that has all three."""
    root, found = data_path(directory), []
    for folder in sorted(root.glob(f"{_QUERIES}*")):
        language = folder.name.removeprefix(_QUERIES)
        files = [sorted(folder.glob(f"{n}/*-{SPLITS[split]}.tsv")) for n in ("topics", "qrels")]
        corpus = sorted((root / f"{_CORPUS}{language}").glob("docs-*.jsonl*"))
        if all(files) and corpus:
            found.append((files[0][0], files[1][0], corpus))
    return found
