"""Rows of one batch with different adapters answer as a model with only their adapter does."""

import dataclasses
import json

import numpy as np
import pytest

import t5x_lite
from t5x_lite.checkpoints import reading
from t5x_lite.checkpoints.init import Base
from t5x_lite.commands import answers
from t5x_lite.commands.answers import Chunk
from t5x_lite.core.errors import InputError
from t5x_lite.core.option_types import RowModules
from t5x_lite.data.formats.pairs import TextRecord
from t5x_lite.inference.loading import TrainedModule
from t5x_lite.layouts import Labelled
from t5x_lite.objectives.task_heads import Classify
from tests import encoder_checkpoint, t5_checkpoint
from tests.adapter_checkpoints import write_adapter

SITES = '("(cross_)?attention/(query|key|value|out)", "mlp/.*")'
LINES = {
    "rte": "rte = lora(r=2)",
    "mrpc": "mrpc = lora(r=2)",
    "wide": f"wide = lora(r=3, alpha=2.0, sites={SITES})",
    "cola": "cola = ia3()",
    "nli": "nli = seq_bn(reduction=2)",
}
NAMES = ["rte", None, "mrpc", "nli", "rte", "cola", "wide", None, "mrpc"]
TEXTS = ["the a", "a", "the the a a the", "of", "a the", "the", "a of", "the of a", "of of"]


@pytest.fixture(scope="module")
def place(tmp_path_factory, tiny_vocabulary):
    directory = tmp_path_factory.mktemp("adapters")
    bases = {
        "t5": t5_checkpoint.write_checkpoint(directory, tiny_vocabulary),
        "bert": encoder_checkpoint.write_checkpoint(directory, "bert"),
    }
    for base, path in bases.items():
        for name, line in LINES.items():
            write_adapter(path, directory / f"{base}_{name}", line)
    return directory


def model_of(place, base):
    model = t5x_lite.load(place / base, batch_size=4)
    for name in LINES:
        model.add_adapter(name, place / f"{base}_{name}")
    return model


@pytest.fixture(scope="module")
def t5(place, compile_once):
    return model_of(place, "t5")


@pytest.fixture(scope="module")
def bert(place, compile_once):
    return model_of(place, "bert")


def one_by_one(model, ask):
    """The answers of a run for each adapter, in the order of the texts."""
    found = [None] * len(TEXTS)
    for name in dict.fromkeys(NAMES):
        model.use(name or "")
        rows = [row for row, other in enumerate(NAMES) if other == name]
        for row, answer in zip(rows, ask([TEXTS[row] for row in rows], rows), strict=True):
            found[row] = answer
    model.use("")
    return found


@pytest.mark.slow
def test_vectors_and_states(bert):
    alone = one_by_one(bert, lambda texts, _: bert.encode(texts))
    mixed = bert.encode(TEXTS, adapters=NAMES)
    np.testing.assert_allclose(mixed, np.stack(alone), rtol=1e-5, atol=1e-5)
    assert np.abs(mixed - bert.encode(TEXTS)).max(axis=1)[NAMES.index("rte")] > 1e-2
    alone = one_by_one(bert, lambda texts, _: bert.encode(texts, per_token=True))
    for ours, theirs in zip(bert.encode(TEXTS, per_token=True, adapters=NAMES), alone, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_log_likelihoods(t5):
    alone = one_by_one(t5, lambda texts, _: t5.score([(text, "the a") for text in texts]))
    mixed = t5.score([(text, "the a") for text in TEXTS], adapters=NAMES)
    np.testing.assert_allclose(mixed, alone, rtol=1e-5, atol=1e-5)
    assert len({round(score, 3) for score in mixed}) == len(mixed)


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"num_beams": 3, "num_return": 2}, marks=pytest.mark.slow),
        pytest.param({"temperature": 1.0, "num_return": 2}, marks=pytest.mark.slow),
    ],
    ids=["greedy", "beams", "sampling"],
)
def test_generated_texts(t5, options):
    options = {"max_decode_length": 6, **options}
    sampled = {} if "temperature" not in options else {"seeds": range(len(TEXTS))}

    def ask(texts, rows):
        seeds = {name: [values[row] for row in rows] for name, values in sampled.items()}
        return t5.predict(texts, **seeds, **options)

    alone = one_by_one(t5, ask)
    mixed = t5.predict(TEXTS, adapters=NAMES, **sampled, **options)
    for ours, theirs in zip(mixed, alone, strict=True):
        assert [one.ids for one in ours] == [one.ids for one in theirs]
        scores = [[one.score for one in each] for each in (ours, theirs)]
        np.testing.assert_allclose(*scores, rtol=1e-5, atol=1e-5)
    assert t5.generate(TEXTS, adapters=NAMES, **sampled, **options) == [
        best.text for best, *_ in mixed
    ]


def test_the_default_is_what_use_chose(t5):
    t5.use("rte")
    alone = t5.score([(TEXTS[0], "a")])
    mixed = t5.score([(TEXTS[0], "a"), (TEXTS[0], "a")], adapters=[None, "mrpc"])
    t5.use("")
    assert mixed[0] == pytest.approx(alone[0], rel=1e-5)
    assert mixed[1] != pytest.approx(alone[0], rel=1e-3)


def test_wrong_names(t5, place):
    with pytest.raises(InputError, match=r"no adapter is called 'rt'; did you mean rte.*rte, mrpc"):
        t5.generate(["a"], adapters=["rt"])
    with pytest.raises(InputError, match="a name or None for each of 2 texts: got 'rte'"):
        t5.generate(["a", "b"], adapters="rte")
    with pytest.raises(InputError, match="no adapter is called 'rte'; there is none"):
        t5x_lite.load(place / "t5").generate(["a"], adapters=["rte"])
    write_adapter(place / "t5", place / "prefix", "p = prefix(length=2)")
    model = t5x_lite.load(place / "t5")
    model.add_adapter("p", place / "prefix")
    with pytest.raises(InputError, match="which the block MultiTask does not support"):
        model.generate(["a"], adapters=["p"])


@pytest.mark.slow
def test_a_head_over_the_adapters_of_lines(tmp_path, compile_once):
    base = encoder_checkpoint.write_ranker(
        tmp_path,
        objective=Classify(num_classes=3),
        layout=Labelled(),
        inputs_length=12,
        targets_length=12,
    )
    directories = {
        name: write_adapter(base, tmp_path / name, LINES[name]) for name in ("rte", "mrpc")
    }
    texts, names = ["a b", "c", "a b", "a b", "d e"], ["rte", "mrpc", None, "mrpc", "rte"]
    model = t5x_lite.load(base, batch_size=2)
    for name, directory in directories.items():
        model.add_adapter(name, directory)
    alone = {}
    for name in (None, *directories):
        model.use(name or "")
        alone[name] = model.predict(texts, probabilities=True)
    write_lines(tmp_path / "in.jsonl", texts, names, "inputs")
    answers.predict(
        [str(base)],
        input=str(tmp_path / "in.jsonl"),
        output=str(tmp_path / "out.jsonl"),
        adapters=RowModules(load=[f"{name}={path}" for name, path in directories.items()]),
        probabilities=True,
        batch_size=2,
    )
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    for row, name in enumerate(names):
        assert found[row]["prediction"] == alone[name][row]["prediction"]
        ours, theirs = (one["probabilities"] for one in (found[row], alone[name][row]))
        np.testing.assert_allclose([*ours.values()], [*theirs.values()], rtol=1e-4, atol=1e-6)
    assert len({str(alone[name][0]["probabilities"]) for name in alone}) == 3


def test_an_adapter_with_a_head_of_its_own_is_a_warning(place, monkeypatch, caplog):
    saved = reading.saved_arrays
    monkeypatch.setattr(
        reading, "saved_arrays", lambda step: {**saved(step), "heads/classifier/bias": None}
    )
    complete = TrainedModule.find("rte", str(place / "bert_rte"))
    assert complete.heads() == []  # with its base: all heads may be those of the base
    partial = dataclasses.replace(complete, base=Base("bert", "bert", {}))
    assert partial.heads() == ["classifier", "mlm"]
    monkeypatch.setattr(TrainedModule, "heads", lambda self: ["classifier"])
    t5x_lite.load(place / "bert").add_adapter("new", place / "bert_rte")
    assert "also trained the head classifier; this head is not loaded" in caplog.text


def test_vectors_of_the_adapters_of_lines(place, bert, tmp_path):
    write_lines(tmp_path / "in.jsonl", TEXTS, NAMES, "text")
    options = {
        "input": str(tmp_path / "in.jsonl"),
        "output": str(tmp_path / "out.npy"),
        "pooling": "mean",
        "batch_size": 4,
        "adapters": RowModules(load=[f"{name}={place / f'bert_{name}'}" for name in LINES]),
    }
    answers.embed(str(place / "bert"), **options)
    expected = bert.encode(TEXTS, normalize=True, adapters=NAMES)
    np.testing.assert_allclose(np.load(options["output"]), expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(InputError, match=r"in\.jsonl:1: no adapter is called 'rte'; there is none"):
        answers.embed(str(place / "bert"), **{**options, "adapters": RowModules()})
    with pytest.raises(InputError, match=r'in\.jsonl:1: "adapter" is not supported with --mcls'):
        answers._check_no_adapter(Chunk([TextRecord("in.jsonl:1", "0", "a", "rte")], []))


@pytest.mark.slow
def test_texts_and_scores_of_the_adapters_of_lines(place, t5, tmp_path):
    loaded = RowModules(load=[f"{name}={place / f't5_{name}'}" for name in LINES])
    options = {"output": str(tmp_path / "out.jsonl"), "adapters": loaded, "batch_size": 4}
    write_lines(tmp_path / "in.jsonl", TEXTS, NAMES, "inputs")
    answers.predict(
        [str(place / "t5")], input=str(tmp_path / "in.jsonl"), max_decode_length=6, **options
    )
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    texts = t5.generate(TEXTS, adapters=NAMES, max_decode_length=6)
    assert [one["prediction"] for one in found] == texts
    write_lines(tmp_path / "in.jsonl", TEXTS, NAMES, "inputs", targets="the a")
    answers.score([str(place / "t5")], input=str(tmp_path / "in.jsonl"), **options)
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    expected = t5.score([(text, "the a") for text in TEXTS], adapters=NAMES)
    np.testing.assert_allclose([one["log_likelihood"] for one in found], expected, rtol=1e-5)


def write_lines(path, texts, names, field, **fields):
    """JSON Lines with a text each, and the adapter of those that name one."""
    records = [
        {field: text, **fields, **({"adapter": name} if name else {})}
        for text, name in zip(texts, names, strict=True)
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
