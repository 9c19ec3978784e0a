"""Masked language modelling: the cross-entropy of the masked positions, and no other logits."""

import dataclasses
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite import layouts
from t5x_lite.config import Checkpoints, Evaluation
from t5x_lite.config.file import from_json, to_json
from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import flatten
from t5x_lite.models.encoder import BertConfig
from t5x_lite.models.lm import LMConfig
from t5x_lite.nn.slots import bind, shapes
from t5x_lite.objectives import masked_lm
from t5x_lite.objectives.electra import Electra
from t5x_lite.objectives.learner import Bound
from t5x_lite.objectives.masked_lm import MaskedLM
from t5x_lite.objectives.retromae import RetroMAE
from t5x_lite.optim.config import AdamW, Constant
from tests.objectives.encoder_rows import LENGTH, MASK, MODEL, VOCAB, learner, rows

OBJECTIVE = MaskedLM(mask_id=MASK, ratio=0.3, whole_word=True)
BATCH = rows()


@pytest.fixture(scope="module")
def made():
    return learner(OBJECTIVE)


@pytest.mark.slow
def test_the_loss_is_that_of_all_logits_at_the_masked_positions(made):
    graphdef, params, _ = made
    loss = jax.jit(lambda params: bind(graphdef, params)(BATCH))(params)

    module = bind(graphdef, params)
    noise, _ = masked_lm.noise_and_dropout(None)
    inputs, slots = OBJECTIVE.draw(BATCH, vocab_size=VOCAB, pad_id=0, key=noise)
    ids = {name: BATCH[f"encoder_{name}"] for name in ("segment_ids", "positions")}
    hidden = module.model(inputs, **ids)
    logits = np.asarray(module.heads.mlm(hidden, module.model.tables()["token"]), np.float64)
    log_p = logits - np.log(np.sum(np.exp(logits), axis=-1, keepdims=True))
    expected, correct, number = 0.0, 0, 0
    for row, (positions, used) in enumerate(zip(*map(np.asarray, slots), strict=True)):
        for position in positions[used > 0]:
            target = int(BATCH["encoder_input_tokens"][row, position])
            expected -= log_p[row, position, target]
            correct += int(np.argmax(logits[row, position]) == target)
            number += 1
    # 0.3 of 12, 10 and 8 tokens are 4, 3 and 2; the words have one or two.
    assert 6 <= number <= 9
    total, weight, scale = loss.terms["cross_entropy"]
    np.testing.assert_allclose(total, expected, rtol=1e-5)
    assert (float(weight), scale) == (number, 1.0)
    assert tuple(map(float, loss.metrics["token_accuracy"])) == (correct, number)


@pytest.mark.parametrize("packed", [False, True])
def test_special_tokens_and_padding_are_never_masked(packed):
    batch = rows(packed=packed)
    objective = MaskedLM(mask_id=MASK, ratio=0.6, mask_fraction=1.0, random_fraction=0.0)
    inputs, slots = objective.draw(batch, vocab_size=VOCAB, pad_id=0, key=jax.random.key(1))
    masked = np.asarray(inputs) != np.asarray(batch["encoder_input_tokens"])
    assert np.all(np.asarray(batch["encoder_word_ids"])[masked] > 0)
    assert np.all(np.asarray(inputs)[masked] == MASK)
    np.testing.assert_array_equal(masked.sum(axis=1), np.asarray(slots.used).sum(axis=1))


def test_a_key_draws_masks_and_dropout(made):
    graphdef, params, _ = made
    loss = jax.jit(lambda key: bind(graphdef, params)(BATCH, key=key).value())
    values = [float(loss(jax.random.key(seed))) for seed in (1, 1, 2)]
    assert values[0] == values[1] != values[2]


def test_every_parameter_gets_a_gradient(made):
    graphdef, params, _ = made
    batch = {**BATCH, "encoder_token_types": BATCH["encoder_positions"] % 2}
    grads = jax.jit(jax.grad(lambda params: bind(graphdef, params)(batch).value()))(params)
    gradients = flatten(grads)
    assert all(np.all(np.isfinite(gradient)) for gradient in gradients.values())
    # A bias of all keys alike changes no attention weight.
    zero = [path for path, leaf in gradients.items() if not np.any(np.abs(leaf) > 1e-7)]
    assert zero == ["model/layers/attention/key/bias"]
    assert {path for path in gradients if not path.startswith("model")} == {
        f"heads/mlm/{name}"
        for name in ("bias", "dense/kernel", "dense/bias", "norm/scale", "norm/bias")
    }


def test_there_are_never_the_logits_of_all_positions(made):
    graphdef, params, _ = made
    text = jax.jit(lambda params: bind(graphdef, params)(BATCH).value()).lower(params).as_text()
    sizes = {int(n) for n in re.findall(rf"tensor<3x(\d+)x{VOCAB}xf32>", text)}
    assert sizes == {masked_lm.most(LENGTH, 0.3)} == {4}


def test_configs_are_saved():
    assert from_json(to_json(OBJECTIVE), source="here") == OBJECTIVE


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ratio": 0.0}, r"objective.ratio must be in \(0, 1\): got 0.0"),
        ({"max_ngram": 0}, "max_ngram must be at least 1"),
        ({"mask_fraction": 0.95}, "at most 1 together: got 0.95 and 0.1"),
        ({"random_fraction": -0.1}, r"random_fraction must be in \[0, 1\]: got -0.1"),
    ],
)
def test_refuses_nonsense(changes, message):
    with pytest.raises(InputError, match=message):
        MaskedLM(**changes)


def test_refuses_parts_that_do_not_go_together(made):
    with pytest.raises(InputError, match=r"mask_id 103 must be below model\.vocab_size 50"):
        shapes(lambda rngs: Bound(MODEL, MaskedLM(), rngs=rngs))
    decoder = LMConfig(vocab_size=8, d_model=4, d_kv=2, d_ff=8, num_heads=2, num_layers=1)
    with pytest.raises(InputError, match="MaskedLM trains an encoder, but the model is a LM"):
        shapes(lambda rngs: Bound(decoder, MaskedLM(mask_id=3), rngs=rngs))
    graphdef, params, _ = made
    with pytest.raises(InputError, match="the batch has no encoder_word_ids: data"):
        bind(graphdef, params)({"encoder_input_tokens": jnp.ones((1, 4), jnp.int32)})


OF_THE_TINY_VOCABULARY = BertConfig(
    vocab_size=400, d_model=16, d_ff=32, num_heads=2, num_layers=1, max_positions=32, unroll=True
)
"""<extra_id_0>, which stands for [MASK], is its last token."""


@pytest.mark.parametrize(
    ("objective", "pack"),
    [
        (MaskedLM(mask_id=399), True),
        pytest.param(RetroMAE(mask_id=399), False, marks=pytest.mark.exhaustive),
        pytest.param(
            Electra(generator=OF_THE_TINY_VOCABULARY, mask_id=399, sharing="gdes", decoupled=True),
            True,
            marks=pytest.mark.exhaustive,
        ),
    ],
    ids=["masked_lm", "retromae", "electra"],
)
@pytest.mark.slow
def test_encoders_train_on_text(objective, pack, tiny_experiment, tmp_path):
    """Through `t5x-lite train`, and on from its checkpoint."""
    from t5x_lite.train.training import train

    experiment = dataclasses.replace(
        tiny_experiment,
        model=OF_THE_TINY_VOCABULARY,
        objective=objective,
        data=dataclasses.replace(
            tiny_experiment.data, task="tasks.encoder:lines", layout=layouts.Encoder(), pack=pack
        ),
        optimizer=AdamW(schedule=Constant(value=0.02)),
        steps=16,
        checkpoints=Checkpoints(period=16),
        evaluation=Evaluation(period=16, max_batches=2, task_metrics=False),
        workdir=str(tmp_path / "run"),
    )
    train(experiment)
    train(dataclasses.replace(experiment, steps=20))
    text = (tmp_path / "run" / "metrics.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    losses = [line["cross_entropy"] for line in lines if "cross_entropy" in line]
    assert len(losses) == 20
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.2
    assert all(0 <= line["token_accuracy"] <= 1 for line in lines if "token_accuracy" in line)
    assert any("validation/token_accuracy" in line for line in lines)
    other = dataclasses.replace(experiment, objective=dataclasses.replace(objective, mask_id=7))
    with pytest.raises(InputError, match=r"mask_id 7 is not the .MASK. .*; set --objective"):
        train(dataclasses.replace(other, workdir=str(tmp_path / "other")))
