"""Queries and passages for contrastive training of encoders: data.layout is Groups().

    Data(task="tasks.pairs:jsonl", directory="DIR", layout=layouts.Groups(), pack=False, ...)

    jsonl        DIR's *.jsonl, objects {"query": str, "pos": [str, ...], "neg": [str, ...]}, and
                 perhaps a teacher's "pos_scores" and "neg_scores"
    beir         a BEIR directory: corpus.jsonl, queries.jsonl, qrels/train.tsv
    same_text    *.txt, one text a line, or *.jsonl with "text": each text answers itself (SimCSE,
                 Gao et al. 2021), and the encoder's dropout makes two views of it

All files but BEIR's may be compressed, and end in .gz or .zst then. A query is cut at
data.inputs_length tokens, a passage at data.targets_length; data.layout.negatives says how many of
a query's "neg" go with it, drawn anew in each epoch. What of jsonl and same_text is held out for
validation is said in `t5x_lite.data.tasks.text_files`; BEIR's dev.tsv is "validation".
"""

from functools import partial

import seqio
import tensorflow as tf

from t5x_lite.data.config import TaskArguments
from t5x_lite.data.tasks import pairs as pair_task
from t5x_lite.data.tasks import stages
from t5x_lite.data.tasks.text_source import json_objects, text_lines
from t5x_lite.records import beir_files, pairs
from tasks.text import source


def jsonl(arguments: TaskArguments) -> seqio.Task:
    """Objects with a query, passages that answer it, and others that do not."""
    read = partial(json_objects, parse=pairs.checked)
    found = source(arguments.directory, read)
    return pair_task.pair_task("pairs_jsonl", arguments, source=found)


def same_text(arguments: TaskArguments) -> seqio.Task:
    """Each text as a query and as what answers it."""
    found = source(arguments.directory, text_lines)
    return pair_task.pair_task("pairs_same", arguments, source=found, read=pairs.same_text)


def beir(arguments: TaskArguments) -> seqio.Task:
    """The queries and the documents of a BEIR directory."""

    def texts(split: str) -> tf.data.Dataset:
        found = beir_files.read_pairs(arguments.directory, split)
        return stages.text_documents([pairs.to_json(one) for one in found])

    found = stages.source(beir_files.splits(arguments.directory), texts, one_to_one=True)
    return pair_task.pair_task("pairs_beir", arguments, source=found)
