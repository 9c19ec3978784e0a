import dataclasses
import inspect
import json

import pytest

from t5x_lite import layouts
from t5x_lite.core.errors import InputError
from t5x_lite.data.vocabularies.loading import load_vocabulary
from tests import tokenizer_files
from tests.tasks.examples import pairs

FILES = {
    "BoolQ/train.jsonl": {"question": "is it", "passage": "It is.", "idx": 0, "label": True},
    "CB/train.jsonl": {"premise": "P.", "hypothesis": "H", "label": "contradiction", "idx": 0},
    "COPA/train.jsonl": {
        "premise": "It rained.",
        "choice1": "It is wet.",
        "choice2": "It is dry.",
        "question": "effect",
        "label": 0,
        "idx": 0,
    },
    "MultiRC/train.jsonl": {
        "idx": 0,
        "passage": {
            "text": "Ann<br>left.",
            "questions": [
                {"question": "Who?", "idx": 0, "answers": [{"text": "Ann", "idx": 0, "label": 1}]}
            ],
        },
    },
    "ReCoRD/train.jsonl": {
        "idx": 0,
        "passage": {"text": "Ann left\n@highlight\nBob", "entities": [{"start": 0, "end": 2}]},
        "qas": [{"query": "@placeholder went", "idx": 0, "answers": [{"text": "Ann"}]}],
    },
    "RTE/train.jsonl": {"premise": "P", "hypothesis": "H", "label": "entailment", "idx": 0},
    "WiC/train.jsonl": {
        "word": "bank",
        "sentence1": "A bank.",
        "sentence2": "The bank.",
        "label": False,
        "idx": 0,
        "start1": 2,
        "start2": 4,
        "end1": 6,
        "end2": 8,
    },
    "AX-b/AX-b.jsonl": {"sentence1": "P", "sentence2": "H", "label": "entailment", "idx": 0},
    "AX-g/AX-g.jsonl": {"premise": "P", "hypothesis": "H", "label": "not_entailment", "idx": 0},
}
WSC = {
    "text": "Ann asked Bob if he could go .",
    "target": {"span1_text": "Bob", "span1_index": 2, "span2_text": "he", "span2_index": 4},
}


@pytest.fixture(scope="module")
def super_glue():
    from tasks import super_glue

    return super_glue


@pytest.fixture(scope="module")
def wordpiece(tmp_path_factory):
    return load_vocabulary(tokenizer_files.write_wordpiece(tmp_path_factory.mktemp("vocabulary")))


@pytest.fixture
def arguments(tmp_path, tiny_vocabulary):
    from t5x_lite.data.config import TaskArguments
    from t5x_lite.data.vocabularies.loading import load_vocabulary

    for name, record in FILES.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(json.dumps(record) + "\n")
    (tmp_path / "WSC").mkdir()
    for split in ("train", "val"):
        lines = [json.dumps({**WSC, "label": bool(i), "idx": i}) for i in range(2)]
        (tmp_path / "WSC" / f"{split}.jsonl").write_text("\n".join(lines))
    (tmp_path / "DPR").mkdir()
    (tmp_path / "DPR" / "train.c.txt").write_text("Ann saw Bob, he left.\nhe\nAnn,Bob\nBob\n\n")
    return TaskArguments(
        vocabulary=load_vocabulary(tiny_vocabulary),
        directory=str(tmp_path),
        inputs_length=64,
        targets_length=16,
    )


@pytest.mark.parametrize(
    ("name", "split", "inputs", "targets"),
    [
        ("boolq", "train", "boolq passage: It is. question: is it", "True"),
        ("cb", "train", "cb hypothesis: H premise: P.", "contradiction"),
        (
            "copa",
            "train",
            "copa choice1: It is wet. choice2: It is dry. premise: It rained. question: effect",
            "choice1",
        ),
        (
            "multirc",
            "train",
            "multirc question: Who? answer: Ann paragraph: Ann left.",
            "True",
        ),
        (
            "record",
            "train",
            "record query: @placeholder went entities: Ann passage: Ann left. Bob",
            "Ann",
        ),
        ("rte", "train", "rte hypothesis: H premise: P", "entailment"),
        ("wic", "train", "wic sentence1: A bank. sentence2: The bank. word: bank", "False"),
        ("wsc", "train", "wsc: Ann asked Bob if *he* could go .", "Bob"),
        ("dpr", "train", "wsc: Ann saw Bob, *he* left.", "Bob"),
        ("axb", "test", "rte hypothesis: H premise: P", "entailment"),
        ("axg", "test", "rte hypothesis: H premise: P", "not_entailment"),
    ],
)
def test_text_and_targets(super_glue, arguments, name, split, inputs, targets):
    task = getattr(super_glue, name)(arguments)
    assert pairs(task, split) == [(inputs, targets)]


def test_the_classes_of_cb_have_another_order_than_those_of_mnli(super_glue, arguments):
    postprocess = super_glue.cb(arguments).postprocess_fn
    found = [postprocess(t) for t in ("entailment", "contradiction", "neutral", "no")]
    assert found == [0, 1, 2, -1]


def test_wsc_evaluates_both_labels_by_the_noun(super_glue, arguments):
    from t5x_lite.data import loading, reading
    from t5x_lite.data.config import Data

    data = Data(
        task="tasks.super_glue:wsc",
        vocabulary="",
        directory=arguments.directory,
        inputs_length=64,
        targets_length=16,
    )
    examples = reading.eval_examples(data, arguments.vocabulary)
    assert [e.target for e in examples] == [0, 1]
    postprocess, (accuracy,) = loading.task_metrics(loading.load_task(data, arguments.vocabulary))
    predictions = [
        postprocess(t, example=e.raw) for t, e in zip(("Ann", "Bob"), examples, strict=True)
    ]
    assert predictions == [0, 1]
    assert accuracy([0, 1], predictions) == {"accuracy": 1.0}


@pytest.mark.parametrize(
    ("name", "answer", "metrics"),
    [
        ("multirc", "True", {"f1": 1.0, "exact_match": 1.0}),
        ("record", "ann!", {"f1": 1.0, "exact_match": 1.0}),
        ("cb", "contradiction", {"mean_3class_f1": 1 / 3, "accuracy": 1.0}),
    ],
)
def test_metrics(super_glue, arguments, name, answer, metrics):
    from t5x_lite.data import loading, reading
    from t5x_lite.data.config import Data

    data = Data(
        task=f"tasks.super_glue:{name}",
        vocabulary="",
        directory=arguments.directory,
        inputs_length=64,
        targets_length=16,
    )
    (example,) = reading.eval_examples(data, arguments.vocabulary, split="train")
    postprocess, functions = loading.task_metrics(loading.load_task(data, arguments.vocabulary))
    prediction = postprocess(answer, example=example.raw, is_target=False)
    found = {}
    for function in functions:
        found |= function([example.target], [prediction])
    assert found == pytest.approx(metrics)


@pytest.mark.parametrize(
    ("name", "split", "first", "second", "target", "label"),
    [
        ("boolq", "train", "is it", "It is.", "True", 2),
        ("cb", "train", "P.", "H", "contradiction", 2),
        ("rte", "train", "P", "H", "entailment", 1),
        ("wic", "train", "bank: A bank.", "The bank.", "False", 1),
        ("multirc", "train", "Ann left. Who?", "Ann", "True", 2),
        ("record", "train", "Ann left. Bob", "Ann went", "True", 2),
        ("axb", "test", "P", "H", "entailment", 1),
        ("axg", "test", "P", "H", "not_entailment", 2),
    ],
)
def test_two_texts_for_an_encoder(
    super_glue, arguments, wordpiece, name, split, first, second, target, label
):
    shown = dataclasses.replace(arguments, vocabulary=wordpiece, layout=layouts.Labelled())
    task = getattr(super_glue, name)(shown)
    [example] = task.source.get_dataset(split, shuffle=False).as_numpy_iterator()
    found = {key: example[key].decode() for key in ("inputs", "second", "targets")}
    assert found == {"inputs": first, "second": second, "targets": target}
    assert example["label"] == label
    # What a server asks for besides goes along.
    extra = {"multirc": {"idx/question"}, "record": {"idx/query"}}.get(name, {"idx"})
    assert extra <= set(example)
    assert task.postprocessor(target, example=example, is_target=False) is not None


def test_dpr_has_no_such_form(super_glue, arguments, wordpiece):
    shown = dataclasses.replace(arguments, vocabulary=wordpiece, layout=layouts.Labelled())
    with pytest.raises(InputError, match="supports only text-to-text models, not"):
        super_glue.dpr(shown)


def test_an_encoder_trains_wsc_on_both_labels(super_glue, arguments, wordpiece):
    shown = dataclasses.replace(arguments, vocabulary=wordpiece, layout=layouts.Labelled())
    task = super_glue.wsc(shown)
    found = [*task.source.get_dataset("train", shuffle=False).as_numpy_iterator()]
    assert [(e["inputs"].decode(), e["second"].decode(), e["label"]) for e in found] == [
        ("Ann asked Bob if *he* could go .", "Bob", 1),
        ("Ann asked Bob if *he* could go .", "Bob", 2),
    ]
    assert [task.postprocess_fn(text) for text in ("False", "True")] == [0, 1]


def test_the_words_of_a_task_are_those_of_its_examples(super_glue):
    """What data.prefix and data.template replace one at a time is the text that T5 has."""
    from t5x_lite.data import preprocessors
    from tasks import squad

    for benchmark, function in [
        (super_glue.MULTIRC, preprocessors.multirc),
        (super_glue.RECORD, preprocessors.record),
        (super_glue.WSC, preprocessors.wsc_simple),
        (super_glue.DPR, preprocessors.definite_pronoun_resolution),
        (squad.SQUAD, preprocessors.squad),
    ]:
        assert benchmark.wording.inputs == inspect.signature(function).parameters["inputs"].default
    assert squad.CLOSED_BOOK.wording.inputs == "squad trivia question: {question}"


def test_words_of_one_s_own(super_glue, arguments):
    texts = {
        "rte": "so? P H",
        "copa": "so? It rained.",
        "multirc": "so? Who? Ann",
        "record": "so? @placeholder went",
    }
    templates = {
        "rte": "{premise} {hypothesis}",
        "copa": "{premise}",
        "multirc": "{question} {answer}",
        "record": "{query}",
    }
    for name, text in texts.items():
        worded = dataclasses.replace(arguments, template=templates[name], prefix="so?")
        task = getattr(super_glue, name)(worded)
        dataset = task.source.get_dataset("train", shuffle=False)
        assert next(iter(dataset.as_numpy_iterator()))["inputs"].decode() == text
