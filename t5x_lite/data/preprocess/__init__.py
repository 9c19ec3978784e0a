"""From a record to text: pure functions over str that tasks share, T5's text to the letter.

A record is a mapping with the fields of TensorFlow Datasets, text as str, a class label as its
index (-1 where it is not known). A function returns the example, or the list of examples, that T5
makes of it: "inputs", "targets", and what its metric needs to know ("idx", "answers").

    glue(
        {"sentence": "it 's charming .", "label": 1, "idx": 7},
        inputs="sst2 sentence: {sentence}",
        labels=("negative", "positive"),
    )
    # {"inputs": "sst2 sentence: it 's charming .", "targets": "positive", "idx": 7}

The text around the fields is a template: the paper (Raffel et al. 2020, arXiv:1910.10683, section
2.4) calls it a hyperparameter. A label that is not known is written "<unk>".

Source: t5 0.9.4, t5/data/preprocessors.py, where the text is made by TensorFlow.
"""

from t5x_lite.data.preprocess.classification import UNKNOWN, glue, label_text, stsb
from t5x_lite.data.preprocess.questions import multirc, pad_punctuation, record, squad
from t5x_lite.data.preprocess.templates import fill, prompt, rewrite
from t5x_lite.data.preprocess.winograd import (
    definite_pronoun_resolution,
    marked_pronoun,
    wnli_simple,
    wsc,
    wsc_simple,
)

__all__ = [
    "UNKNOWN",
    "definite_pronoun_resolution",
    "fill",
    "glue",
    "label_text",
    "marked_pronoun",
    "multirc",
    "pad_punctuation",
    "prompt",
    "record",
    "rewrite",
    "squad",
    "stsb",
    "wnli_simple",
    "wsc",
    "wsc_simple",
]
