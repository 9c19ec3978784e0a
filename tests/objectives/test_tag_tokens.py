"""Tags of words: the loss against NumPy, and a run from files to F1, in transformers' form too."""

import dataclasses
import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite import layouts
from t5x_lite.config import Checkpoints, Evaluation, Experiment
from t5x_lite.config.file import from_json, to_json
from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import LazyArray, flatten
from t5x_lite.data.config import Data
from t5x_lite.inference.loading import Loaded
from t5x_lite.interop.tensor_files import read_safetensors, write_safetensors
from t5x_lite.models.encoder import BertConfig
from t5x_lite.models.heads import Token
from t5x_lite.models.lm import LMConfig
from t5x_lite.nn.slots import bind, shapes
from t5x_lite.objectives.learner import Bound
from t5x_lite.objectives.task_heads import TagTokens
from t5x_lite.optim.config import AdamW, Constant
from tests import tokenizer_files
from tests.objectives.encoder_rows import MODEL, learner, loss_of, rows


def batch_of(*, packed=False):
    """Rows with labels at some tokens: 1 to 3; the last row has none."""
    made = rows(packed=packed)
    labels = np.zeros((3, 12), np.int32)
    labels[0, [1, 2, 4]] = [1, 3, 2]
    labels[1, 3] = 3
    given = {name: made[f"encoder_{name}"] for name in ("input_tokens", "segment_ids")}
    found = {f"encoder_{name}": value for name, value in given.items()}
    return {**found, "token_labels": jnp.asarray(labels)}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.slow
def test_cross_entropy_at_the_labelled_tokens(packed):
    graphdef, params, _ = learner(TagTokens(num_classes=3))
    batch = batch_of(packed=packed)
    hidden = bind(graphdef, params).model(
        batch["encoder_input_tokens"], segment_ids=batch["encoder_segment_ids"]
    )
    out = jax.tree.map(np.asarray, params["heads"]["token"]["out"])
    logits = np.asarray(hidden) @ out["kernel"] + out["bias"]
    log_p = logits - np.log(np.sum(np.exp(logits), axis=-1, keepdims=True))
    places = [(0, 1, 0), (0, 2, 2), (0, 4, 1), (1, 3, 2)]
    loss = jax.jit(lambda params: loss_of(graphdef, params, batch))(params)
    total, weight, scale = loss.terms["cross_entropy"]
    np.testing.assert_allclose(total, -sum(log_p[place] for place in places), rtol=1e-4)
    assert (float(weight), scale) == (4.0, 1.0)
    right = sum(np.argmax(logits[row, token]) == label for row, token, label in places)
    assert tuple(map(float, loss.metrics["accuracy"])) == (right, 4.0)


@pytest.mark.exhaustive
def test_the_parts_of_a_batch_are_the_batch():
    graphdef, params, _ = learner(TagTokens(num_classes=3))
    batch = batch_of()
    whole = loss_of(graphdef, params, batch)
    parts = [
        loss_of(graphdef, params, {name: value[here] for name, value in batch.items()})
        for here in (slice(0, 1), slice(1, 3))
    ]
    np.testing.assert_allclose(parts[0].plus(parts[1]).value(), whole.value(), rtol=1e-5)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_every_parameter_gets_a_gradient_and_a_key_is_dropout():
    graphdef, params, _ = learner(TagTokens(num_classes=3), MODEL.replace(dropout_rate=0.3))
    batch = batch_of()
    loss = jax.jit(lambda p, key: loss_of(graphdef, p, batch, key).value())
    values = [float(loss(params, jax.random.key(seed))) for seed in (0, 0, 1)]
    assert values[0] == values[1] != values[2]
    grads = flatten(jax.grad(lambda p: loss_of(graphdef, p, batch).value())(params))
    zero = {path for path, leaf in grads.items() if not np.any(np.abs(leaf) > 1e-6)}
    assert zero == {"model/layers/attention/key/bias"}


def test_the_head_s_rate_of_dropout():
    def rate(objective):
        model = MODEL.replace(dropout_rate=0.1)
        graphdef, abstract, _ = shapes(lambda rngs: Bound(model, objective, rngs=rngs))
        return bind(graphdef, abstract).heads.token.dropout_rate

    assert (rate(TagTokens()), rate(TagTokens(dropout_rate=0.3))) == (0.1, 0.3)


def test_refuses_nonsense():
    with pytest.raises(InputError, match=r"objective\.num_classes must be at least 2: got 1"):
        TagTokens(num_classes=1)
    with pytest.raises(InputError, match=r"objective\.dropout_rate must be in \[0, 1\): got 1\.0"):
        TagTokens(dropout_rate=1.0)
    decoder = LMConfig(vocab_size=8, d_model=4, d_kv=2, d_ff=8, num_heads=2, num_layers=1)
    with pytest.raises(InputError, match="TagTokens trains an encoder, but the model is a LM"):
        shapes(lambda rngs: Bound(decoder, TagTokens(), rngs=rngs))
    graphdef, params, _ = learner(TagTokens())
    with pytest.raises(InputError, match=r"the batch has no token_labels: data\.layout must be t"):
        loss_of(graphdef, params, rows())


def test_configs_are_saved():
    objective = TagTokens(num_classes=9, dropout_rate=0.2)
    assert from_json(to_json(objective), source="here") == objective
    named = Token(num_classes=2, labels=("B", "O"))
    assert objective.heads({"token": named}) == (Token(num_classes=9, dropout_rate=0.2),)


# Through `t5x-lite train`, `evaluate`, `export` and `import`.

TAGS = ("B-A", "B-B", "I-A", "O")


def sentence(number):
    """A dog is an A, which una goes on with, and to run is a B."""
    name = [("dogs", "I-A"), ("una", "I-A")][: 1 + number % 2]
    return [("the", "O"), *name, ("running", "I-B"), ("abcdef"[number % 6], "O")]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    root = tmp_path_factory.mktemp("conll")
    for name, numbers in (("train", range(32)), ("testa", range(6)), ("testb", range(3))):
        blocks = ["\n".join(" ".join(word) for word in sentence(i)) for i in numbers]
        (root / f"eng.{name}").write_text("-DOCSTART- O\n\n" + "\n\n".join(blocks) + "\n")
    return root


@pytest.fixture(scope="module")
def experiment(files, tmp_path_factory):
    root = tmp_path_factory.mktemp("run")
    return Experiment(
        model=BertConfig(
            vocab_size=128, d_model=16, d_ff=32, num_heads=2, num_layers=1, max_positions=16,
            token_types=2, dropout_rate=0.0, attention_dropout_rate=0.0, unroll=True,
        ),
        objective=TagTokens(num_classes=4),
        data=Data(
            task="tasks.tokens:conll",
            vocabulary=str(tokenizer_files.write_wordpiece(root)),
            directory=str(files),
            layout=layouts.Tokens(),
            batch_size=8,
            inputs_length=16,
            pack=False,
            extra_ids=0,
        ),
        optimizer=AdamW(schedule=Constant(value=0.02)),
        steps=30,
        checkpoints=Checkpoints(period=30, best="validation/f1"),
        evaluation=Evaluation(period=30),
        workdir=str(root / "work"),
    )  # fmt: skip


@pytest.mark.slow
def test_from_files_to_f1_and_through_transformers_form(
    experiment, files, tmp_path, capsys, caplog
):
    from t5x_lite.commands.weights import export_hf, import_hf
    from t5x_lite.train.measuring import evaluate
    from t5x_lite.train.training import train

    train(experiment)
    out = tmp_path / "out"
    metrics = evaluate(experiment, [experiment.workdir], output=str(out))
    assert [metrics[f"validation/{name}"] for name in ("precision", "recall", "f1")] == [1.0] * 3
    assert metrics["validation/accuracy"] == 1.0
    trained = Loaded.from_checkpoint(experiment.workdir, step=None).experiment
    assert trained.heads == (Token(num_classes=4, labels=TAGS),)
    (first, *_) = (out / "predictions.jsonl").read_text().splitlines()
    assert json.loads(first) == {
        "inputs": "the dogs running a",
        "targets": "O B-A B-B O",
        "prediction": "O B-A B-B O",
    }
    told = json.loads((out / "metrics.json").read_text())
    assert told["invalid_predictions"] == 0
    blocks = (out / "submission" / "conll" / "test.txt").read_text().split("\n\n")
    assert blocks[1] == "the O O\ndogs B-A B-A\nuna I-A I-A\nrunning B-B B-B\nb O O"
    train(dataclasses.replace(experiment, steps=31))  # it goes on: its head has names now
    other = dataclasses.replace(experiment, workdir=str(tmp_path / "other"))
    with pytest.raises(InputError, match=r"has the labels B-A, B-B, I-A, O; set --objective\.num"):
        train(dataclasses.replace(other, objective=TagTokens(num_classes=9)))

    # The classes in another order, as another library may have them.
    export_hf(experiment.workdir, tmp_path / "exported")
    config = json.loads((tmp_path / "exported" / "config.json").read_text())
    assert config["architectures"] == ["BertForTokenClassification"]
    assert config["id2label"] == {str(i): tag for i, tag in enumerate(TAGS)}
    config["id2label"] = {str(i): tag for i, tag in enumerate(TAGS[::-1])}
    (tmp_path / "exported" / "config.json").write_text(json.dumps(config))
    weights = tmp_path / "exported" / "model.safetensors"
    tensors = read_safetensors(weights)
    for name in ("classifier.weight", "classifier.bias"):
        tensors[name] = np.ascontiguousarray(tensors[name][::-1])
    lazy = {name: LazyArray(a.shape, a.dtype, partial(np.array, a)) for name, a in tensors.items()}
    write_safetensors(weights, lazy)
    import_hf(tmp_path / "exported", tmp_path / "imported")
    imported = Loaded.from_checkpoint(str(tmp_path / "imported"), step=None).experiment
    assert (imported.objective, imported.data.layout) == (
        TagTokens(num_classes=4),
        layouts.Tokens(),
    )
    vocabulary = str(tmp_path / "imported" / "files" / "vocabulary")
    data = dataclasses.replace(experiment.data, vocabulary=vocabulary)
    caplog.set_level("INFO", logger="t5x_lite")
    again = evaluate(dataclasses.replace(experiment, data=data), [str(tmp_path / "imported")])
    assert again["validation/f1"] == 1.0
    assert "head and task order the classes differently" in caplog.text
