"""Examples of a task as text, to be shown."""

import dataclasses
import json

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.config import Data
from t5x_lite.data.preprocessors import Columns

pytest.importorskip("seqio")

from t5x_lite.data.reading import Demonstration, demonstrations

LONG = "a story that is longer than any row " * 4


@pytest.fixture
def data(tmp_path, tiny_vocabulary):
    rows = [("it rains", "wet"), ("it rains", "dry"), (LONG, "dry"), ("snow", "wet")]
    for split in ("train", "test"):
        lines = [{"text": text, "label": label} for text, label in rows]
        lines = lines if split == "train" else [{"text": "ice"}]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return Data(
        task="tasks.files:classify",
        vocabulary=str(tiny_vocabulary),
        directory=str(tmp_path),
        columns=Columns(inputs="Q: {text}", targets="{label}", labels=("wet", "dry")),
        inputs_length=16,
        targets_length=8,
    )


def test_texts_are_whole_and_different(data, vocabulary, caplog):
    caplog.set_level("INFO", logger="t5x_lite")
    assert demonstrations(data, vocabulary, split="train", pool=None) == [
        Demonstration("Q: it rains", "wet"),
        Demonstration(f"Q: {LONG}", "dry"),
        Demonstration("Q: snow", "wet"),
    ]
    assert len(demonstrations(data, vocabulary, split="train", pool=4)) == 3
    assert not [told for told in caplog.messages if "sampling few-shot examples" in told]


def test_the_first_of_a_long_split(data, vocabulary, caplog):
    caplog.set_level("INFO", logger="t5x_lite")
    found = demonstrations(data, vocabulary, split="train", pool=2)
    assert found == [Demonstration("Q: it rains", "wet")]
    (told,) = [message for message in caplog.messages if "sampling few-shot examples" in message]
    assert told.endswith(
        "from the first 2 examples of split train; --evaluation.few-shot.pool changes this number"
    )


def test_what_cannot_be_shown(data, vocabulary):
    with pytest.raises(InputError, match="has no labels in split 'test' for few-shot"):
        demonstrations(data, vocabulary, split="test", pool=None)
    with pytest.raises(InputError, match="has no split 'validation'; its splits are train, test"):
        demonstrations(data, vocabulary, split="validation", pool=None)
    gone = dataclasses.replace(data, directory=f"{data.directory}/gone")
    with pytest.raises(InputError, match="no such file or directory"):
        demonstrations(gone, vocabulary, split="train", pool=None)
