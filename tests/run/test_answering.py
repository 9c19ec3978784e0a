"""predict and score: order and fields are kept, and the numbers are those of the model."""

import io
import json
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.errors import InputError
from t5x_lite.run import answering
from t5x_lite.run.parts import Loaded

RECORDS = [
    {"inputs": "the second argument", "targets": "is a list", "id": 7},
    {"inputs": "", "targets": "", "nested": {"é": [1, None]}},
    {"targets": "the", "inputs": "a"},
    {"inputs": "Ünïcode 漢字", "targets": "漢", "prediction": "overwritten"},
    {"inputs": "the second argument", "targets": "was a list", "id": 8},
]


@pytest.fixture
def files(tmp_path):
    """The paths of an input and of an output that is not there yet."""
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    return {"input": str(source), "output": str(tmp_path / "out.jsonl")}


def lines(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


@pytest.fixture
def predict(tiny_run, files, compile_once):
    def run(**options):
        options = {**files, "max_decode_length": 6, "batch_size": 2} | options
        answering.predict(str(tiny_run), **options)
        return lines(options["output"])

    return run


@pytest.fixture
def score(tiny_run, files, compile_once):
    def run(**options):
        options = {**files, "batch_size": 2} | options
        answering.score(str(tiny_run), **options)
        return lines(options["output"])

    return run


def test_predictions_are_added_in_order_and_other_fields_are_kept(predict):
    answers = predict()
    for answer, record in zip(answers, RECORDS, strict=True):
        assert isinstance(answer["prediction"], str)
        assert {**answer, "prediction": None} == {**record, "prediction": None}
        assert list(answer) == list({**record, "prediction": None})
    assert answers[0]["prediction"] == answers[4]["prediction"]
    assert answers[3]["prediction"] != "overwritten"


def test_predictions_are_the_most_likely_tokens(predict, tiny_run):
    loaded = Loaded.from_checkpoint(str(tiny_run), step=None)
    model = jax.jit(loaded.parts.bind_model(loaded.params))
    [inputs] = loaded.inputs([RECORDS[0]["inputs"]])
    said: list[int] = []
    while len(said) < 6 and said[-1:] != [1]:
        decoder = np.zeros(6, np.int32)  # what comes later is not seen
        decoder[1 : len(said) + 1] = said
        logits = model(jnp.asarray(inputs)[None], jnp.asarray(decoder)[None])
        said.append(int(np.argmax(logits[0, len(said)])))
    assert predict()[0]["prediction"] == loaded.vocabulary.decode(said)


def test_neither_batches_nor_chunks_change_an_answer(predict, monkeypatch):
    expected = predict()
    assert predict(batch_size=5) == expected
    monkeypatch.setattr(answering, "CHUNK", 2)
    assert predict() == expected


def test_another_step_answers(predict):
    assert len(predict(step=5)) == 5


def test_scores_are_the_sums_of_log_softmax(score, tiny_run):
    loaded = Loaded.from_checkpoint(str(tiny_run), step=None)
    model = jax.jit(loaded.parts.bind_model(loaded.params))
    scored = score()
    for got, record in zip(scored, RECORDS, strict=True):
        [inputs] = loaded.inputs([record["inputs"]])
        targets = [*loaded.vocabulary.encode(record["targets"]), 1]
        # The model's dropout is off, and padding to one length keeps this to one compilation.
        encoder, decoder = np.zeros((2, 1, 32), np.int32)
        encoder[0, : len(inputs)] = inputs
        decoder[0, 1 : len(targets)] = targets[:-1]
        logits = model(jnp.asarray(encoder), jnp.asarray(decoder))[0]
        log_probabilities = np.asarray(jax.nn.log_softmax(logits), np.float64)
        by_hand = sum(log_probabilities[i, token] for i, token in enumerate(targets))
        assert got["log_likelihood"] == pytest.approx(by_hand, abs=1e-4)
        assert got["num_tokens"] == len(targets)
        assert list(got) == [*record, "log_likelihood", "num_tokens"]
        assert {name: got[name] for name in record} == record
    assert scored[1]["num_tokens"] == 1  # the end


def test_a_score_depends_on_its_own_line_only(score):
    expected = [record["log_likelihood"] for record in score()]
    alone = [record["log_likelihood"] for record in score(batch_size=1)]
    np.testing.assert_allclose(alone, expected, atol=1e-4)


def test_inputs_that_are_too_long_are_cut_with_a_warning(score, files, caplog):
    long = {"inputs": "word " * 50, "targets": "word " * 50}
    with open(files["input"], "w") as file:
        file.write(json.dumps(long) + "\n" + json.dumps(RECORDS[0]) + "\n")
    answers = score()
    assert answers[0]["inputs"] == long["inputs"]
    assert caplog.messages == ["1 inputs longer than data.inputs_length 32 tokens were cut"]
    # A likelihood is that of the whole target.
    assert answers[0]["num_tokens"] > 50


def test_standard_input_and_output(predict, tiny_run, files, monkeypatch, capsys):
    expected = predict()
    with open(files["input"], "rb") as file:
        content = io.BytesIO(file.read())
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=content))
    answering.predict(str(tiny_run), input="-", output="-", max_decode_length=6, batch_size=2)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "in.jsonl: no line to read"),
        ("\n \n", "in.jsonl: no line to read"),
        ('{"inputs": "a"}\n{"input": "b"}\n', 'in.jsonl:2: must have "inputs", a string'),
        ('{"inputs": "a"}\nb\n', r"in.jsonl:2: not JSON \("),
    ],
)
def test_a_wrong_input_leaves_no_output(predict, files, tmp_path, content, message):
    with open(files["input"], "w") as file:
        file.write(content)
    with pytest.raises(InputError, match=message):
        predict()
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_score_needs_targets(score, files):
    with open(files["input"], "w") as file:
        file.write('{"inputs": "a"}\n')
    with pytest.raises(InputError, match=r'in.jsonl:1: must have "targets", a string'):
        score()
