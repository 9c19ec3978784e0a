"""Tasks of queries and passages for contrastive training of encoders, for data.layout Groups().

    Data(task="tasks.pairs:jsonl", directory="DIR", layout=layouts.Groups(), pack=False, ...)

    jsonl        *.jsonl with objects {"query": str, "pos": [str, ...], "neg": [str, ...]}, and
                 optionally a teacher's "pos_scores" and "neg_scores"
    beir         a BEIR directory: corpus.jsonl, queries.jsonl, qrels/train.tsv
    dpr          *train*.json and *dev*.json of DPR: "positive_ctxs" and "hard_negative_ctxs"
    marco        a collection with queries.train.tsv and qrels.train.tsv, as in MS MARCO
    miracl       all existing languages of MIRACL; passages judged as not relevant are negatives
    nli          *train*.jsonl and *dev*.jsonl of SNLI or MultiNLI; contradictions are negatives
    triplets     *.tsv with lines query TAB positive passage TAB negative passage
    titles       a collection of passages (`tasks.encoder:passages`); each title is a query for
                 its passage
    stsb         GLUE's STS-B/{train,dev}.tsv: two sentences, and their grade from 0 to 5 as the
                 teacher's score (data.layout Groups(teacher=True), objective CosineRegression)
    squad, triviaqa, pubmedqa, mrtydi, tevatron    released files (docs/guides/data_sets.md)
    same_text    any unlabelled text that tasks.text reads; each text is query and positive, and
                 the encoder's dropout makes two views of it (SimCSE, Gao et al. 2021)

Files may be compressed (.gz, .zst), except BEIR's files and files of queries. A query is truncated
to data.inputs_length tokens, a passage to data.targets_length. data.layout.negatives is the number
of a query's "neg" that are sampled again in each epoch. `t5x_lite.data.tasks.unsupervised` defines
the held-out examples of jsonl, triplets, same_text and titles. The validation split is dev.tsv in
BEIR and queries.dev.tsv in MS MARCO.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import seqio

from t5x_lite.core.errors import InputError
from t5x_lite.data.config import TaskArguments
from t5x_lite.data.formats import pairs, released_files
from t5x_lite.data.formats import retrieval_sets as sets
from t5x_lite.data.tasks import benchmarks, stages
from t5x_lite.data.tasks import encoder as pair_task
from t5x_lite.data.tasks import text_source as text
from t5x_lite.data.tasks.unsupervised import SUFFIXES, collection_files, files_of_both
from tasks.glue import STSB

Read = Callable[[str], Iterable[pairs.Pairs]]


def jsonl(arguments: TaskArguments) -> seqio.Task:
    """Return a task on JSON objects with a query, its positives and its negatives."""
    files = files_of_both(arguments.directory, suffixes=SUFFIXES)
    found = text.source_of_files(files, partial(text.json_objects, parse=pairs.checked))
    lines = pair_task.lines_of(files, partial(text.of_object, parse=pairs.checked))
    return pair_task.pair_task("pairs_jsonl", arguments, source=found, lines=lines)


def same_text(arguments: TaskArguments) -> seqio.Task:
    """Return a task on unlabelled texts, with each text as both query and positive."""
    found = text.document_source(
        arguments.directory, columns=arguments.columns, languages=arguments.languages
    )
    return pair_task.pair_task(
        "pairs_same", arguments, source=found, read=pairs.same_text, one_to_one=True
    )


def marco(arguments: TaskArguments) -> seqio.Task:
    """Return a task on the queries and relevant passages of a directory like MS MARCO's."""
    directory = arguments.directory

    def read(split: str) -> list[pairs.Pairs]:
        collection = collection_files(directory, named=True)["train"]
        return sets.read_marco_pairs(directory, split, collection)

    return _read_whole("marco", arguments, sets.marco_splits(directory), read)


def triplets(arguments: TaskArguments) -> seqio.Task:
    """Return a task on tab-separated lines of a query, a positive and a negative."""
    files = files_of_both(arguments.directory, suffixes=(".tsv",))
    found = text.source_of_files(files, partial(text.parsed_lines, parse=pairs.checked_triplet))
    lines = pair_task.lines_of(files, partial(text.of_line, parse=pairs.checked_triplet))
    make = partial(pair_task.pair_task, one_to_one=True, lines=lines)
    return make("pairs_triplets", arguments, source=found)


def titles(arguments: TaskArguments) -> seqio.Task:
    """Return a task on a collection of passages, with each title as a query for its passage."""
    read = partial(text.passage_texts, write=pairs.titled)
    found = text.source_of_files(collection_files(arguments.directory), read)
    return pair_task.pair_task("pairs_titles", arguments, source=found, one_to_one=True)


def stsb(arguments: TaskArguments) -> seqio.Task:
    """Return a task on STS-B's pairs of sentences with their grades as teacher's scores."""
    folder = benchmarks.official_folder(STSB.benchmark(), arguments.directory)
    if folder is None:
        raise InputError(
            f"no STS-B/train.tsv in data.directory {arguments.directory!r}; give the directory "
            "that contains STS-B, or STS-B itself"
        )

    def read(split: str) -> list[pairs.Pairs]:
        return [
            pairs.Pairs(one["sentence1"], [one["sentence2"]], [], [one["label"]])
            for one in STSB.records(folder / STSB.files[split], split)
        ]

    return _read_whole("stsb", arguments, ("train", "validation"), read)


def _of_directory(name: str, arguments: TaskArguments, splits: Any, read: Any) -> seqio.Task:
    directory = arguments.directory
    return _read_whole(name, arguments, splits(directory), partial(read, directory))


def _released(name: str, arguments: TaskArguments) -> seqio.Task:
    splits, read = released_files.PAIRS[name]
    directory = arguments.directory
    return _read_whole(name, arguments, splits(directory), partial(read, directory))


def _read_whole(
    name: str, arguments: TaskArguments, splits: tuple[str, ...], read: Read
) -> seqio.Task:
    """Return a task on pairs that `read` reads completely, one split at a time."""

    def texts(split: str) -> Any:
        return stages.text_documents([*map(pairs.to_json, pairs.without_any_answers(read(split)))])

    found = stages.source(splits, texts)
    return pair_task.pair_task(f"pairs_{name}", arguments, source=found)


beir = partial(_of_directory, "beir", splits=sets.beir_splits, read=sets.read_beir_pairs)
miracl = partial(_of_directory, "miracl", splits=sets.miracl_splits, read=sets.read_miracl_pairs)
nli = partial(_of_directory, "nli", splits=pairs.nli_splits, read=pairs.read_nli_pairs)
dpr = partial(_of_directory, "dpr", splits=sets.dpr_splits, read=sets.read_dpr_pairs)
squad, triviaqa, pubmedqa, mrtydi, tevatron = (
    partial(_released, name) for name in ("squad", "triviaqa", "pubmedqa", "mrtydi", "tevatron")
)
