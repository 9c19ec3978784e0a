"""Heads on encoders: their losses against NumPy, and GLUE fine-tuning from a pretrained encoder."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite import layouts
from t5x_lite.checkpoints.init import Init
from t5x_lite.config import Checkpoints, Evaluation, Experiment
from t5x_lite.config.file import from_json, to_json
from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import flatten
from t5x_lite.data.config import Data
from t5x_lite.inference.loading import Loaded
from t5x_lite.models.encoder import BertConfig
from t5x_lite.models.heads import Classifier, Mlm
from t5x_lite.models.lm import LMConfig
from t5x_lite.nn.slots import bind, shapes
from t5x_lite.objectives.learner import Bound
from t5x_lite.objectives.masked_lm import MaskedLM
from t5x_lite.objectives.task_heads import Classify, loss_of_classes
from t5x_lite.optim.config import AdamW, Constant
from tests import tokenizer_files
from tests.objectives.encoder_rows import CLS, MODEL, SEP, learner, loss_of


def batch_of(labels):
    """Three pairs of texts of up to eight tokens."""
    tokens = np.zeros((3, 8), np.int32)
    for row, size in enumerate((8, 6, 5)):
        tokens[row, :size] = [CLS, 10 + row, SEP, *range(20, 16 + size), SEP]
    types = (np.arange(8) > 2) & (tokens > 0)
    batch = {
        "encoder_input_tokens": tokens,
        "encoder_segment_ids": (tokens > 0).astype(np.int32),
        "encoder_token_types": types.astype(np.int32),
        "labels": np.array([[label, 0] for label in labels], np.int32),
    }
    return {name: jnp.asarray(value) for name, value in batch.items()}


CLASSES = batch_of([2, 1, 0])  # the last row has no label
SCORES = batch_of([3801, 1, 0])


def head(params, x, activation):
    """The head in NumPy, from the state of [CLS]."""
    hidden = x @ np.asarray(params["dense"]["kernel"]) + np.asarray(params["dense"]["bias"])
    hidden = np.tanh(hidden) if activation == "tanh" else np.asarray(jax.nn.gelu(hidden, False))
    return hidden @ np.asarray(params["out"]["kernel"]) + np.asarray(params["out"]["bias"])


def reference(made, batch, activation="tanh"):
    graphdef, params, _ = made
    names = ("segment_ids", "token_types")
    given = {name: batch[f"encoder_{name}"] for name in names}
    hidden = bind(graphdef, params).model(batch["encoder_input_tokens"], **given)
    return head(params["heads"]["classifier"], np.asarray(hidden)[:, 0], activation)


@pytest.mark.parametrize("kind", ["bert", "deberta"])
def test_cross_entropy_of_classes(kind):
    made = learner(Classify(num_classes=3, head=kind))
    logits = reference(made, CLASSES, "tanh" if kind == "bert" else "gelu")
    loss = jax.jit(lambda params: loss_of(made[0], params, CLASSES))(made[1])
    log_p = logits - np.log(np.sum(np.exp(logits), axis=1, keepdims=True))
    total, weight, _ = loss.terms["cross_entropy"]
    np.testing.assert_allclose(total, -(log_p[0, 1] + log_p[1, 0]), rtol=1e-4)
    assert float(weight) == 2.0
    right = (np.argmax(logits[0]) == 1) + (np.argmax(logits[1]) == 0)
    assert tuple(map(float, loss.metrics["accuracy"])) == (right, 2.0)


def test_squared_error_of_scores():
    made = learner(Classify(num_classes=1))
    scores = reference(made, SCORES)[:, 0]
    loss = jax.jit(lambda params: loss_of(made[0], params, SCORES))(made[1])
    total, weight, _ = loss.terms["squared_error"]
    np.testing.assert_allclose(total, (scores[0] - 3.8) ** 2 + scores[1] ** 2, rtol=1e-4)
    assert float(weight) == 2.0


LOGITS = jnp.log(jnp.array([[0.5, 0.25, 0.25], [0.125, 0.375, 0.5], [1 / 3] * 3]))
"""Of three rows, of which the last has no label."""
LABELS = jnp.array([1, 3, 0])


def test_class_weights_and_label_smoothing_are_sums():
    def terms(**options):
        loss = loss_of_classes(LOGITS, LABELS, **options)
        assert tuple(map(float, loss.metrics["accuracy"])) == (2.0, 2.0)
        return loss.terms["cross_entropy"][:2]

    ln = np.log
    np.testing.assert_allclose(terms(), [-ln(0.5) - ln(0.5), 2.0], rtol=1e-6)
    weighted = terms(class_weights=(4.0, 1.0, 0.5))
    np.testing.assert_allclose(weighted, [-4.0 * ln(0.5) - 0.5 * ln(0.5), 4.5], rtol=1e-6)
    sums = -ln(0.5) - 2 * ln(0.25), -ln(0.125) - ln(0.375) - ln(0.5)
    smooth = 0.7 * 2 * -ln(0.5) + 0.1 * sum(sums)
    np.testing.assert_allclose(terms(label_smoothing=0.3), [smooth, 2.0], rtol=1e-6)
    both = terms(class_weights=(1.0, 0.0, 0.0), label_smoothing=0.3)
    np.testing.assert_allclose(both, [-0.7 * ln(0.5) - 0.1 * (ln(0.5) + ln(0.125)), 1.0], rtol=1e-6)


def test_weights_of_one_and_no_smoothing_change_nothing():
    plain = loss_of_classes(LOGITS, LABELS).value()
    ones = loss_of_classes(LOGITS, LABELS, class_weights=(1.0, 1.0, 1.0)).value()
    np.testing.assert_allclose(ones, plain, rtol=1e-6)


def test_the_parts_of_a_weighted_batch_are_the_batch():
    options = {"class_weights": (4.0, 1.0, 0.5), "label_smoothing": 0.1}
    whole = loss_of_classes(LOGITS, LABELS, **options)
    first, second = (
        loss_of_classes(LOGITS[here], LABELS[here], **options) for here in (slice(1), slice(1, 3))
    )
    np.testing.assert_allclose(first.plus(second).value(), whole.value(), rtol=1e-6)


def test_the_objective_gives_its_weights_to_the_loss():
    fields = {"class_weights": (4.0, 1.0, 0.5), "label_smoothing": 0.1}
    made = learner(Classify(num_classes=3, **fields))
    logits = jnp.asarray(reference(made, CLASSES))
    want = loss_of_classes(logits, CLASSES["labels"][:, 0], **fields)
    np.testing.assert_allclose(loss_of(made[0], made[1], CLASSES).value(), want.value(), rtol=1e-4)
    open_weights = learner(Classify(num_classes=3, class_weights="balanced"))
    with pytest.raises(InputError, match="supported only by `t5x-lite train`, which computes"):
        loss_of(open_weights[0], open_weights[1], CLASSES)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_every_parameter_gets_a_gradient_and_a_key_is_dropout():
    graphdef, params, _ = learner(Classify(num_classes=2), MODEL.replace(dropout_rate=0.3))
    loss = jax.jit(lambda p, key: loss_of(graphdef, p, CLASSES, key).value())
    values = [float(loss(params, jax.random.key(seed))) for seed in (0, 0, 1)]
    assert values[0] == values[1] != values[2]
    grads = flatten(jax.grad(lambda p: loss_of(graphdef, p, CLASSES).value())(params))
    largest = {path: float(np.max(np.abs(leaf))) for path, leaf in grads.items()}
    # What a key's bias adds to all logits of a query, softmax takes away: rounding is left, 1e-8.
    assert largest.pop("model/layers/attention/key/bias") < 1e-7
    assert min(largest.values()) > 1e-4


@pytest.mark.parametrize(
    ("kind", "dropout_rate", "before"),
    [("bert", None, 0.0), ("roberta", None, 0.1), ("electra", 0.2, 0.2), ("deberta", 0.2, 0.0)],
)
def test_dropout_before_the_first_layer(kind, dropout_rate, before):
    model = MODEL.replace(dropout_rate=0.1)
    graphdef, abstract, _ = shapes(
        lambda rngs: Bound(model, Classify(head=kind, dropout_rate=dropout_rate), rngs=rngs)
    )
    made = bind(graphdef, abstract).heads.classifier
    assert made.input_dropout_rate == before
    assert made.dropout_rate == (0.1 if dropout_rate is None else dropout_rate)
    assert made.activation == ("tanh" if kind in ("bert", "roberta") else "gelu")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_classes": -1}, r"objective\.num_classes must be at least 0: got -1"),
        ({"dropout_rate": 1.0}, r"objective\.dropout_rate must be in \[0, 1\): got 1\.0"),
        ({"label_smoothing": 1.0}, r"objective\.label_smoothing must be in \[0, 1\): got 1\.0"),
        ({"class_weights": (1.0,)}, "must have one weight for each of 2 classes: got 1"),
        ({"class_weights": (1.0, -1.0)}, r"objective\.class_weights must be at least 0: got"),
        ({"class_weights": (0.0, 0.0)}, "weight of objective.class_weights must be above 0"),
        ({"num_classes": 1, "label_smoothing": 0.1}, r"need classes, but objective\.num_classes 1"),
        ({"num_classes": 1, "class_weights": "balanced"}, "num_classes 1 is regression"),
    ],
)
def test_refuses_nonsense(fields, message):
    with pytest.raises(InputError, match=message):
        Classify(**fields)


def test_refuses_parts_that_do_not_go_together():
    decoder = LMConfig(vocab_size=8, d_model=4, d_kv=2, d_ff=8, num_heads=2, num_layers=1)
    with pytest.raises(InputError, match="Classify trains an encoder, but the model is a LM"):
        shapes(lambda rngs: Bound(decoder, Classify(), rngs=rngs))
    graphdef, params, _ = learner(Classify())
    with pytest.raises(InputError, match=r"the batch has no encoder_segment_ids, labels: data"):
        loss_of(graphdef, params, {"encoder_input_tokens": jnp.ones((1, 4), jnp.int32)})


def test_configs_are_saved():
    objective = Classify(num_classes=3, head="electra", dropout_rate=0.2)
    assert from_json(to_json(objective), source="here") == objective
    weighted = dataclasses.replace(objective, class_weights=(1.0, 2.0, 0.5), label_smoothing=0.1)
    assert from_json(to_json(weighted), source="here") == weighted


# Through `t5x-lite train` and `t5x-lite evaluate`.


@pytest.fixture(scope="module")
def glue(tmp_path_factory):
    """RTE of which the answer stands in the second sentence, and STS-B with scores."""
    root = tmp_path_factory.mktemp("glue")
    for name, column in (("RTE", "label"), ("STS-B", "score")):
        (root / name).mkdir()
        for split, number in (("train", 64), ("dev", 16)):
            rows = [f"index\tsentence1\tsentence2\t{column}"]
            for i in range(number):
                label = ("not_entailment", "entailment")[i % 2]
                value = label if name == "RTE" else f"{4.2 * (i % 2)}"
                rows.append(f"{i}\tthe dog {'abcdefgh'[i % 8]}\t{('run', 'una')[i % 2]}\t{value}")
            (root / name / f"{split}.tsv").write_text("\n".join(rows) + "\n")
    (root / "documents.txt").write_text("\n\n".join(["the dogs run una ble"] * 40))
    return root


@pytest.fixture(scope="module")
def pretrained(glue, tmp_path_factory, compile_once):
    """Two steps of masked language modelling, with its head."""
    from t5x_lite.train.training import train

    root = tmp_path_factory.mktemp("pretrained")
    vocabulary = tokenizer_files.write_wordpiece(root)
    experiment = Experiment(
        model=BertConfig(
            vocab_size=128, d_model=16, d_ff=32, num_heads=2, num_layers=1, max_positions=16,
            token_types=2, dropout_rate=0.0, attention_dropout_rate=0.0, unroll=True,
        ),
        objective=MaskedLM(mask_id=4),
        data=Data(
            task="tasks.encoder:documents",
            vocabulary=str(vocabulary),
            directory=str(glue),
            layout=layouts.Encoder(),
            batch_size=8,
            inputs_length=16,
            shuffle_buffer=64,
        ),
        optimizer=AdamW(schedule=Constant(value=0.01)),
        steps=2,
        checkpoints=Checkpoints(period=2),
        evaluation=Evaluation(period=2, loss=False, task_metrics=False),
        workdir=str(root / "run"),
    )  # fmt: skip
    train(experiment)
    return experiment


def tuned(pretrained, glue, workdir, *, task, num_classes, **fields):
    return dataclasses.replace(
        pretrained,
        objective=Classify(num_classes=num_classes),
        data=dataclasses.replace(
            pretrained.data,
            task=task,
            directory=str(glue),
            layout=layouts.Labelled(),
            pack=False,
            batch_size=16,
        ),
        optimizer=AdamW(schedule=Constant(value=0.01), layer_decay=0.9),
        steps=40,
        init=Init(checkpoint=pretrained.workdir),
        checkpoints=Checkpoints(period=40, best="validation/accuracy" if num_classes > 1 else None),
        evaluation=Evaluation(period=40),
        workdir=str(workdir),
        **fields,
    )


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_pair_s_entailment_is_learned_and_measured(pretrained, glue, tmp_path, capsys):
    from t5x_lite.train.measuring import evaluate
    from t5x_lite.train.training import train

    experiment = tuned(pretrained, glue, tmp_path / "rte", task="tasks.glue:rte", num_classes=2)
    train(experiment)
    metrics = evaluate(experiment, [experiment.workdir], output=str(tmp_path / "out"))
    assert metrics["validation/accuracy"] == 1.0
    # The head of pretraining is kept as it was, without a rule.
    kept, tuned_ = (
        Loaded.from_checkpoint(directory, step=None)
        for directory in (pretrained.workdir, experiment.workdir)
    )
    labels = ("entailment", "not_entailment")
    assert tuned_.experiment.heads == (Mlm(), Classifier(num_classes=2, labels=labels))
    for path, leaf in flatten(kept.params).items():
        same = np.array_equal(leaf, flatten(tuned_.params)[path])
        assert same == path.startswith("heads/mlm/"), path
    train(dataclasses.replace(experiment, steps=41))  # it goes on: its heads have names now
    assert Loaded.from_checkpoint(experiment.workdir, step=41).experiment.heads == (
        tuned_.experiment.heads
    )
    samples = (tmp_path / "rte" / "samples.jsonl").read_text().splitlines()
    assert json.loads(samples[0]) == {
        "step": 40,
        "inputs": "the dog a run",
        "targets": "not_entailment",
        "prediction": "not_entailment",
    }
    other = dataclasses.replace(experiment, workdir=str(tmp_path / "other"))
    with pytest.raises(InputError, match=r"has the labels entailment, not_entailment; set --obj"):
        train(dataclasses.replace(other, objective=Classify(num_classes=3)))
    mixed = dataclasses.replace(experiment.data, task="tasks.mixtures:glue")
    with pytest.raises(
        InputError, match="is a mixture, but a model with an encoder head supports only one task"
    ):
        train(dataclasses.replace(other, data=mixed))


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_score_is_learned_and_measured(pretrained, glue, tmp_path, capsys):
    from t5x_lite.train.measuring import evaluate
    from t5x_lite.train.training import train

    experiment = tuned(pretrained, glue, tmp_path / "stsb", task="tasks.glue:stsb", num_classes=1)
    train(experiment)
    metrics = evaluate(experiment, [experiment.workdir])
    assert metrics["validation/pearson_corrcoef"] > 0.99
