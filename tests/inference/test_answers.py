"""Heads that answer texts: decoding, records, files, Python, and the server's endpoint."""

import json

import numpy as np
import pytest

import t5x_lite
from t5x_lite import layouts
from t5x_lite.commands.answers import predict
from t5x_lite.core.errors import InputError
from t5x_lite.inference.answers import (
    Asked,
    Encoded,
    best_span,
    check_record,
    softmax,
    tagged_spans,
)
from t5x_lite.inference.checkpoint import Checkpoint
from t5x_lite.models.heads import Classifier, Token
from t5x_lite.objectives.task_heads import Choose, Classify, Spans, TagTokens, TaskHeads
from t5x_lite.serve.batching import Refused
from t5x_lite.serve.endpoints import Asked as ServerOptions
from t5x_lite.serve.endpoints import PredictByHead
from t5x_lite.serve.server import _usual
from tests.encoder_checkpoint import write_checkpoint, write_ranker

LENGTHS = {"inputs_length": 12, "targets_length": 12}
TAGS = ("O", "B-X", "I-X")
KINDS = {
    "classes": (Classify(num_classes=3), layouts.Labelled()),
    "number": (Classify(num_classes=1), layouts.Labelled()),
    "tags": (TagTokens(num_classes=3), layouts.Tokens()),
    "choice": (Choose(), layouts.Choices()),
    "span": (Spans(), layouts.Windows()),
    "several": (TaskHeads(tasks=("mnli=3", "stsb=1", "squad=span")), layouts.Labelled()),
}
HEADS = {
    "classes": (Classifier(num_classes=3, labels=("no", "perhaps", "yes")),),
    "tags": (Token(num_classes=3, labels=TAGS),),
}
RECORDS = {
    "classes": [{"inputs": "a b"}, {"inputs": "c", "second": "d e"}],
    "number": [{"inputs": "a b"}, {"inputs": "c d"}],
    "tags": [{"inputs": "a b, zz c"}, {"inputs": "d"}],
    "choice": [
        {"inputs": "a", "choices": ["b", "c d", "e"]},
        {"inputs": "b", "choices": ["f", "g"]},
    ],
    "span": [{"question": "a", "context": "b c d"}, {"question": "e", "context": "f g " * 9}],
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, compile_once):
    del compile_once
    made = {}

    def of(kind):
        if kind not in made:
            objective, layout = KINDS[kind]
            made[kind] = write_ranker(
                tmp_path_factory.mktemp(kind),
                objective=objective,
                layout=layout,
                heads=HEADS.get(kind, ()),
                **LENGTHS,
            )
        return str(made[kind])

    return of


def test_tags_become_spans():
    places = [(0, 3), (3, 5), (6, 9), (10, 12), (13, 14), (15, 16)]
    best = np.array([1, 2, 1, 0, 2, 2])  # B-X I-X, B-X, O, I-X I-X
    logits = np.zeros((8, 3), np.float32)
    logits[np.arange(1, 7), best] = 3.0
    encoded = Encoded(rows=[], text="abcde fgh ij k l", offsets=[places])
    found = tagged_spans(encoded, [logits], TAGS)
    assert [(s["label"], s["start"], s["end"], s["text"]) for s in found] == [
        ("X", 0, 5, "abcde"),
        ("X", 6, 9, "fgh"),
        ("X", 13, 16, "k l"),
    ]
    np.testing.assert_allclose(found[0]["score"], softmax(np.array([3.0, 0.0, 0.0]))[0])
    two = Encoded(rows=[], text="abcde", offsets=[places[:1], places[:2]])
    overlapping = tagged_spans(two, [logits[:3], logits[:4]], TAGS)
    assert [(s["start"], s["end"]) for s in overlapping] == [(0, 5)]


def test_an_answer_has_whole_words_and_windows_add_up():
    encoded = Encoded(
        rows=[],
        text="un able un able",
        begins=2,
        offsets=[[(0, 2), (3, 5), (5, 7)], [(8, 10), (11, 13), (13, 15)]],
        words=[[0, 1, 1], [2, 3, 3]],
    )
    one = np.full((2, 6), -9.0, np.float32)
    one[0, 3], one[1, 3] = 9.0, 9.0  # the piece "ab" of the second word
    found = best_span(encoded, [one, one], longest=3)
    assert (found["prediction"], found["start"], found["end"]) == ("able", 3, 7)
    assert found["score"] == pytest.approx(2.0, abs=1e-5)
    none = np.full((2, 6), -9.0, np.float32)
    none[:, 0] = 9.0
    assert best_span(encoded, [none, none], longest=3, may_be_none=True)["prediction"] == ""
    assert best_span(encoded, [none, none], longest=3)["prediction"] != ""


@pytest.mark.slow
@pytest.mark.parametrize("kind", RECORDS)
def test_the_command_python_and_the_server_agree(checkpoint, kind, tmp_path):
    records, directory = RECORDS[kind], checkpoint(kind)
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    files = {"input": str(tmp_path / "in.jsonl"), "output": str(tmp_path / "out.jsonl")}
    predict([directory], **files, batch_size=2)
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    model = t5x_lite.load(directory, batch_size=3)
    python = model.predict(records)
    loaded = Checkpoint.load([directory])
    endpoint = PredictByHead(loaded, ServerOptions())
    assert _usual(loaded) == (("predict", "rerank") if kind == "number" else ("predict",))
    for line, record, own in zip(lines, records, python, strict=True):
        same({**record, **own}, line)
        rows = endpoint.rows(record)
        payloads = [row.payload for row in rows]
        outcomes = [
            endpoint.answer([payload], size=1, lengths=row.lengths)[0]
            for row, payload in zip(rows, payloads, strict=True)
        ]
        [served] = endpoint.results(record, outcomes)
        served.pop("cut", None)
        same(served, own)
    assert set(python[0]) == {
        "choice": {"prediction", "index"},
        "span": {"prediction", "start", "end", "score"},
    }.get(kind, {"prediction"})


def same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, float):
            assert found[name] == pytest.approx(value, rel=1e-4, abs=1e-5)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for one, other in zip(found[name], value, strict=True):
                same(one, other)
        else:
            assert found[name] == value


def test_probabilities_add_up(checkpoint):
    model = t5x_lite.load(checkpoint("classes"))
    [one, pair] = model.predict(["a b", ("c", "d e")], probabilities=True)
    assert list(one["probabilities"]) == ["no", "perhaps", "yes"]
    assert sum(one["probabilities"].values()) == pytest.approx(1.0)
    assert one["prediction"] == max(one["probabilities"], key=one["probabilities"].get)
    assert pair["probabilities"] != one["probabilities"]


@pytest.mark.slow
def test_one_of_several_heads_is_chosen_by_name(checkpoint):
    model = t5x_lite.load(checkpoint("several"))
    assert isinstance(model.predict(["a"], head="stsb")[0]["prediction"], float)
    assert model.predict(["a"], head="mnli")[0]["prediction"].startswith("LABEL_")
    assert "start" in model.predict([("a", "b c")], head="squad")[0]
    with pytest.raises(
        InputError, match="has several heads, mnli, stsb, squad; choose one of the heads by --head"
    ):
        model.predict(["a"])
    with pytest.raises(
        InputError, match=r"no head 'stsbb' that predicts for texts.*did you mean stsb\?"
    ):
        model.predict(["a"], head="stsbb")


@pytest.mark.slow
def test_a_killed_command_resumes(checkpoint, tmp_path, monkeypatch):
    records = [{"inputs": f"a {'b ' * (i % 5)}c", "n": i} for i in range(150)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    whole = {"input": str(tmp_path / "in.jsonl"), "output": str(tmp_path / "whole.jsonl")}
    predict([checkpoint("classes")], **whole, batch_size=2)
    from t5x_lite.inference.answers import Answerer

    calls, answers = [], Answerer.answers

    def killed(self, encoded, **options):
        calls.append(len(encoded))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return answers(self, encoded, **options)

    files = {**whole, "output": str(tmp_path / "out.jsonl")}
    monkeypatch.setattr(Answerer, "answers", killed)
    with pytest.raises(KeyboardInterrupt):
        predict([checkpoint("classes")], **files, batch_size=2)
    assert not (tmp_path / "out.jsonl").exists()
    predict([checkpoint("classes")], **files, batch_size=2)
    assert sum(calls[2:]) == 150 - 64
    assert (tmp_path / "out.jsonl").read_text() == (tmp_path / "whole.jsonl").read_text()


@pytest.mark.parametrize(
    ("kind", "record", "message"),
    [
        ("classes", {"text": "a"}, 'must have "inputs", a string, and "second".*, but has "text"'),
        ("classes", {"inputs": " "}, '"inputs" is empty; add a text or remove the line'),
        ("classes", {"inputs": "a", "second": ""}, '"second" is empty'),
        ("classes", {"inputs": 3}, '"inputs" must be a string, got int'),
        ("classes", {"inputs": "a", "choices": ["b", "c"]}, 'has "choices", but head'),
        ("tags", {"inputs": "a", "second": "b"}, "has \"second\", but head 'token' tags the words"),
        ("tags", {}, 'must have "inputs", a string, but has nothing'),
        ("choice", {"inputs": "a"}, 'must have "inputs", a string, and "choices", a list'),
        ("choice", {"inputs": "a", "choices": ["b"]}, "at least 2 texts, got 1"),
        (
            "choice",
            {"inputs": "a", "choices": ["b", None]},
            r'"choices"\[1\] must be a string, got',
        ),
        ("choice", {"question": "a", "context": "b"}, 'but has "context", "question"'),
        ("span", {"question": "a"}, 'must have "question" and "context", two strings, but has'),
        ("span", {"inputs": "a"}, 'must have "question" and "context"'),
        ("span", {"question": "a", "context": ""}, '"context" is empty'),
    ],
)
def test_a_wrong_line_is_one_message(kind, record, message):
    [head] = KINDS[kind][0].heads({})
    with pytest.raises(InputError, match=f"in.jsonl:7: .*{message}|in.jsonl:7: {message}"):
        check_record(head, record, where="in.jsonl:7")


def test_what_does_not_fit_a_checkpoint_is_refused(checkpoint, tmp_path, tiny_vocabulary):
    from tests import t5_checkpoint

    (tmp_path / "in.jsonl").write_text('{"inputs": "a"}\n')
    files = {"input": str(tmp_path / "in.jsonl"), "output": str(tmp_path / "out.jsonl")}
    classes = [checkpoint("classes")]
    bert = [str(write_checkpoint(tmp_path, "bert"))]
    t5 = [str(t5_checkpoint.write_checkpoint(tmp_path / "t5", tiny_vocabulary))]
    cases = [
        (bert, {}, "encoder without a head that predicts for texts; use .*embed.* by .*finetune"),
        (
            classes,
            {"head": "token"},
            "has no head 'token' that predicts for texts; its heads are class",
        ),
        (classes, {"prompt": "x"}, "predicts with its head 'classifier'; remove --prompt"),
        (
            classes,
            {"threshold": 0.3},
            "option threshold is not supported for such a head; its options are prob",
        ),
        (classes, {"doc_stride": 3}, "classifies a text .*, but the option doc_stride"),
        (
            classes,
            {"inputs_length": 999},
            "length of the model is .* tokens, but inputs_length sets the length of rows to 999",
        ),
        (classes, {"inputs_length": 3}, "maximum length of 3 tokens is too short"),
        (classes * 2, {}, "not supported for predictions with a head; give a single --checkpoint"),
        (t5, {"head": "classifier"}, "T5 generates text, but the options .* are for encoders"),
        (t5, {"probabilities": True}, "T5 generates text, but the options"),
    ]
    for checkpoints, options, message in cases:
        with pytest.raises(InputError, match=message):
            predict(checkpoints, **files, **options)
        assert not (tmp_path / "out.jsonl").exists()
    with pytest.raises(
        InputError, match=r"cannot generate text; use .*predict.*, which predicts with its"
    ):
        t5x_lite.load(classes[0]).generate(["a"])
    with pytest.raises(InputError, match=r"threshold must be in \[0, 1\]: got 2"):
        Asked(threshold=2.0)


def test_texts_that_are_cut_are_named_or_refused(checkpoint, tmp_path, caplog):
    (tmp_path / "in.jsonl").write_text('{"inputs": "a"}\n' + json.dumps({"inputs": "b " * 40}))
    files = {"input": str(tmp_path / "in.jsonl"), "output": str(tmp_path / "out.jsonl")}
    predict([checkpoint("classes")], **files)
    assert (
        "in.jsonl:2: truncating this input and all further long inputs to 12 tokens" in caplog.text
    )
    with pytest.raises(InputError, match="jsonl:2: the input is longer than 12 tokens"):
        predict([checkpoint("classes")], **files, long_inputs="refuse")


@pytest.mark.parametrize(
    ("kind", "request_", "sentence"),
    [
        ("classes", {}, "must have .inputs."),
        ("classes", {"inputs": ["a", "b"], "second": ["c"]}, "lists of one length"),
        ("classes", {"inputs": []}, "at least one text"),
        ("classes", {"inputs": "a", "probabilities": "yes"}, "must be true or false"),
        ("classes", {"inputs": ["a", ""]}, "Text 1: .inputs. is empty"),
        ("choice", {"inputs": "a", "choices": ["b"]}, "at least 2 texts"),
        ("classes", {"inputs": ["a"] * 9}, "may have at most 8 texts, got 9"),
    ],
)
def test_requests_that_are_refused(checkpoint, kind, request_, sentence):
    endpoint = PredictByHead(Checkpoint.load([checkpoint(kind)]), ServerOptions(max_rows=8))
    with pytest.raises(Refused, match=sentence):
        endpoint.rows(request_)
