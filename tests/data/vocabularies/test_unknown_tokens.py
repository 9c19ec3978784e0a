"""Text that the vocabulary cannot spell is told with its share."""

import numpy as np
import pytest

from t5x_lite.data import batches as data_batches
from t5x_lite.data.cache.making import write_cache
from t5x_lite.data.config import Data
from t5x_lite.data.vocabularies import encoder_tokens
from t5x_lite.data.vocabularies.loading import load_vocabulary, train_sentencepiece

BYTES = load_vocabulary("bytes")  # 2 is unknown, and "a" is 100


@pytest.mark.parametrize(
    ("examples", "told"),
    [
        ([], []),
        ([{"inputs": [100, 101, 1], "targets": [102, 1]}], []),
        (
            [{"inputs": [100, 101, 1], "targets": [2, 100, 1]}] * 3
            + [{"inputs": [100], "targets": [102, 1]}],
            [
                "unknown tokens in task a_task: 75% of targets have unknown tokens (27% of "
                "their tokens), such as 'a'"
            ],
        ),
        ([{"targets": [7] * 99}] * 99 + [{"targets": [2]}], []),  # 0.01 % of the tokens
        (
            [{"inputs": [2] + [100] * 199}] * 10 + [{"inputs": [100] * 200}] * 10,
            [
                "unknown tokens in task a_task: 50% of inputs have unknown tokens (0.2% of "
                "their tokens), such as 'aaa"
            ],
        ),
    ],
)
def test_shares(examples, told, caplog):
    encoder_tokens.tell("a_task", iter(examples), BYTES)
    assert len(caplog.messages) == len(told)
    for message, beginning in zip(caplog.messages, told, strict=True):
        assert message.startswith(beginning)
        assert message.endswith("--data.vocabulary bytes")


@pytest.fixture(scope="module")
def ascii_vocabulary(tmp_path_factory):
    directory = tmp_path_factory.mktemp("ascii")
    return load_vocabulary(
        train_sentencepiece(["in a warm and funny film"] * 9, size=17, output_dir=directory)
    )


def test_unknown_characters_are_named(ascii_vocabulary, caplog):
    text = "a warm “film” — a”"
    example = {
        "inputs": ascii_vocabulary.encode(text),
        "inputs_pretokenized": np.array(text.encode(), object),
    }
    encoder_tokens.tell("a_task", [example], ascii_vocabulary)
    assert "; characters without a token: ” “ —; train a vocabulary" in caplog.text


def test_the_first_examples_alone_are_read(caplog):
    examples = iter([{"targets": [5]}] * encoder_tokens.FIRST + [{"targets": [2]}])
    encoder_tokens.tell("a_task", examples, BYTES)
    assert next(examples) == {"targets": [2]}


@pytest.fixture(scope="module")
def stsb(tmp_path_factory, english_lines):
    """STS-B, and the data config of a vocabulary that has no digits."""
    pytest.importorskip("seqio")
    root = tmp_path_factory.mktemp("stsb")
    letters = ["".join(c for c in line if not c.isdigit()) for line in english_lines]
    vocabulary = train_sentencepiece(letters, size=300, output_dir=root / "vocabulary")
    (root / "STS-B").mkdir()
    for split in ("train", "dev"):
        rows = "".join(f"{i}\tit rains\tit is wet\t{i / 2:.3f}\n" for i in range(8))
        content = "index\tsentence1\tsentence2\tscore\n" + rows
        (root / "STS-B" / f"{split}.tsv").write_text(content)
    return Data(
        task="tasks.glue:stsb",
        directory=str(root),
        vocabulary=str(vocabulary),
        batch_size=2,
        inputs_length=32,
        targets_length=8,
    )


TOLD = (
    "unknown tokens in task glue_stsb: 100% of targets have unknown tokens (40% of their tokens), "
    "such as ' \u2047 ."
)


def test_training_and_caching_tell_it_once(stsb, tmp_path, caplog):
    vocabulary = load_vocabulary(stsb.vocabulary)
    data_batches.train_batches(stsb, vocabulary, seed=0)
    write_cache(stsb, vocabulary, tmp_path / "cache", splits=["train"])
    told = [message for message in caplog.messages if "unknown tokens" in message]
    assert len(told) == 2
    assert all(message.startswith(TOLD) for message in told)
    assert "; 100% of inputs have unknown tokens (" in told[0]  # "sentence1:"
