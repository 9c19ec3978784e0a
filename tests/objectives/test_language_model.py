import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_lite import layouts
from t5x_lite.checkpoints.reading import saved_steps
from t5x_lite.config import Checkpoints, Evaluation
from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import flatten
from t5x_lite.models.lm import LMConfig
from t5x_lite.nn.slots import bind, shapes
from t5x_lite.objectives.learner import Bound
from t5x_lite.objectives.likelihood import LanguageModel, Seq2Seq
from t5x_lite.optim.config import AdamW, Constant

MODEL = LMConfig(
    vocab_size=400,
    d_model=16,
    d_kv=8,
    d_ff=32,
    num_heads=2,
    num_layers=1,
    prefix=True,
    dropout_rate=0.1,
)
BATCH = {
    "decoder_input_tokens": jnp.array([[0, 5, 1, 6, 0]]),
    "decoder_target_tokens": jnp.array([[5, 1, 6, 1, 0]]),
    "decoder_loss_weights": jnp.array([[0, 0, 1, 1, 0]]),
    "decoder_causal_attention": jnp.array([[1, 1, 1, 0, 0]]),
    "decoder_segment_ids": jnp.array([[1, 1, 1, 1, 0]]),
    "decoder_positions": jnp.array([[0, 1, 2, 3, 0]]),
}


@pytest.mark.slow
def test_the_model_gets_the_features_that_are_there():
    seen = {}

    def model(**features):
        seen.update(features)
        return jnp.zeros((1, 5, 7))

    objective = LanguageModel().build(MODEL, rngs=nnx.Rngs(0))
    objective(model, None, BATCH)
    assert set(seen) == {
        "decoder_input_tokens",
        "decoder_segment_ids",
        "decoder_causal_attention",
        "key",
    }
    seen.clear()
    rows_of_lm = ("decoder_input_tokens", "decoder_target_tokens", "decoder_loss_weights")
    objective(model, None, {name: BATCH[name] for name in rows_of_lm})
    assert set(seen) == {"decoder_input_tokens", "key"}


@pytest.mark.slow
def test_every_parameter_gets_a_gradient():
    graphdef, abstract, _ = shapes(lambda rngs: Bound(MODEL, LanguageModel(), rngs=rngs))
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(size=leaf.shape).astype(np.float32)), abstract
    )
    grads = jax.jit(jax.grad(lambda params: bind(graphdef, params)(BATCH).value()))(params)
    assert [path for path, leaf in flatten(grads).items() if not np.any(leaf)] == []


@pytest.fixture
def experiment(tiny_experiment, tmp_path):
    """Twenty steps of a prefix language model on the text of `tiny_experiment`."""
    return dataclasses.replace(
        tiny_experiment,
        model=MODEL,
        objective=LanguageModel(),
        data=dataclasses.replace(
            tiny_experiment.data,
            task="tasks.text:prefix_lm",
            layout=layouts.PrefixLM(),
            inputs_length=16,
            targets_length=16,
        ),
        optimizer=AdamW(schedule=Constant(value=0.02)),
        steps=20,
        checkpoints=Checkpoints(period=20),
        evaluation=Evaluation(period=20, max_batches=2),
        workdir=str(tmp_path / "run"),
    )


@pytest.mark.exhaustive
def test_a_prefix_language_model_trains(experiment, tmp_path):
    from t5x_lite.train.training import train

    train(experiment)
    text = (tmp_path / "run" / "metrics.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert len(losses) == 20
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.2
    (validation,) = [line for line in lines if "validation/loss" in line]
    assert validation["validation/token_accuracy"] <= 1.0
    assert saved_steps(tmp_path / "run" / "checkpoints") == [20]


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (
            {"objective": Seq2Seq(), "layout": layouts.Seq2Seq()},
            "objective Seq2Seq passes .* to the model, but LM needs",
        ),
        ({"objective": Seq2Seq()}, "objective Seq2Seq needs data.layout seq2seq, got prefix_lm"),
        (
            {"layout": layouts.Seq2Seq()},
            "objective LanguageModel needs data.layout lm or prefix_lm or",
        ),
        (
            {"layout": layouts.ConcatLM()},
            r"but it is missing; set data\.layout",
        ),
        (
            {"layout": layouts.LM()},
            "lm needs the features targets, but the task has inputs and targets",
        ),
    ],
)
@pytest.mark.slow
def test_parts_that_do_not_go_together_are_refused_before_training(
    experiment, part, message, tmp_path
):
    from t5x_lite.train.training import train

    changes = dict(part)
    layout = changes.pop("layout", experiment.data.layout)
    data = dataclasses.replace(experiment.data, layout=layout)
    with pytest.raises(InputError, match=message):
        train(dataclasses.replace(experiment, data=data, **changes))
    assert not (tmp_path / "run").exists()
