import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import flatten
from t5x_lite.models.deberta import DebertaConfig
from t5x_lite.models.encoder import BertConfig
from t5x_lite.models.t5 import T5Config
from t5x_lite.nn.slots import shapes
from t5x_lite.objectives.contrastive import Contrastive
from t5x_lite.objectives.learner import Bound
from t5x_lite.objectives.likelihood import Seq2Seq
from t5x_lite.objectives.task_heads import Classify
from t5x_lite.optim.config import Adafactor, AdamW, Constant, decays
from t5x_lite.optim.partial import decayed_by_layer

SIZES = {"vocab_size": 9, "d_model": 8, "d_ff": 8, "num_heads": 2, "num_layers": 2}
MODELS = {
    "bert": BertConfig(**SIZES, embedding_size=4, token_types=2),
    "deberta": DebertaConfig(**SIZES, position_buckets=4, conv_kernel_size=3),
}


def learner(name):
    return shapes(lambda rngs: Bound(MODELS[name], Classify(), rngs=rngs))


def ones(abstract):
    return jax.tree.map(lambda leaf: jnp.ones(leaf.shape, jnp.float32), abstract)


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_of_an_encoder_has_the_rate_of_its_depth(name):
    import optax

    _, abstract, axes = learner(name)
    below = MODELS[name].below
    scaled, _ = decayed_by_layer(optax.identity(), 0.5, axes, below).update(ones(abstract), ())
    for path, leaf in flatten(scaled).items():
        if path.startswith("model/layers/"):
            expected = np.array([0.25, 0.5]).reshape(2, *[1] * (leaf.ndim - 1))
        else:
            expected = 1.0 if path.startswith("heads/classifier/") else 0.125
        np.testing.assert_array_equal(leaf, np.broadcast_to(expected, leaf.shape), err_msg=path)


def test_a_second_encoder_has_the_rates_of_the_first():
    import optax

    objective = Contrastive(towers="two", pooling="cls", normalize=True)
    _, abstract, axes = shapes(lambda rngs: Bound(MODELS["bert"], objective, rngs=rngs))
    below = MODELS["bert"].below
    scaled, _ = decayed_by_layer(optax.identity(), 0.5, axes, below).update(ones(abstract), ())
    rates = flatten(scaled)
    own = {path: rate for path, rate in rates.items() if path.startswith("model/")}
    assert len(own) > 4
    for path, rate in own.items():
        other = rates[path.replace("model/", "towers/passage/", 1)]
        np.testing.assert_array_equal(rate, other, err_msg=path)


def test_t5_has_tables_below_its_layers_and_norms_above():
    import optax

    sizes = {"vocab_size": 9, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_heads": 2}
    config = T5Config(**sizes, num_encoder_layers=2, num_decoder_layers=2)
    _, abstract, axes = shapes(lambda rngs: Bound(config, Seq2Seq(), rngs=rngs))
    scaled, _ = decayed_by_layer(optax.identity(), 0.5, axes, config.below).update(
        ones(abstract), ()
    )
    rates = {
        path: float(leaf.max()) for path, leaf in flatten(scaled).items() if "/layers/" not in path
    }
    assert rates == {
        "model/token_embedding/table": 0.125,
        "model/encoder/relative_bias/table": 0.125,
        "model/decoder/relative_bias/table": 0.125,
        "model/encoder/final_norm/scale": 1.0,
        "model/decoder/final_norm/scale": 1.0,
        "model/lm_head/kernel": 1.0,
    }


@pytest.mark.parametrize("optimizer", [AdamW, Adafactor])
@pytest.mark.slow
def test_an_update_is_scaled_with_its_decay_and_the_state_is_as_it_was(optimizer):
    axes = {
        "model": {
            "layers": {"kernel": ("layers", "embed", "mlp")},
            "embedding": {"token": ("vocab", "embed")},
            "final_norm": {"scale": ("embed",)},
        },
        "objective": {},
    }
    params = {
        "model": {
            "layers": {"kernel": jnp.ones((2, 3, 4))},
            "embedding": {"token": jnp.ones((5, 3))},
            "final_norm": {"scale": jnp.ones((3,))},
        },
        "objective": {},
    }
    grads = jax.tree.map(lambda leaf: jnp.full(leaf.shape, 0.1), params)
    plain, decayed = (
        optimizer(schedule=Constant(value=0.1), layer_decay=decay).build(axes, below=("embedding",))
        for decay in (1.0, 0.5)
    )
    steps, state = plain.update(grads, plain.init(params), params)
    other, other_state = decayed.update(grads, decayed.init(params), params)
    assert jax.tree.structure(steps) == jax.tree.structure(other) == jax.tree.structure(params)
    factors = {"layers/kernel": [[[0.25]], [[0.5]]], "embedding/token": 0.125}
    for path, leaf in flatten(steps["model"]).items():
        expected = np.asarray(leaf) * np.asarray(factors.get(path, 1.0), np.float32)
        np.testing.assert_allclose(flatten(other["model"])[path], expected, rtol=1e-6)
    jax.tree.map(np.testing.assert_array_equal, state, other_state)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.slow
def test_norms_and_biases_of_encoders_have_no_weight_decay(name):
    _, _, axes = learner(name)
    spared = {path for path, names in flatten(axes).items() if not decays(names)}
    last = {path.rsplit("/", 1)[-1] for path in spared}
    assert last == {"scale", "bias"}
    kept = {path.rsplit("/", 1)[-1] for path in set(flatten(axes)) - spared}
    tables = {"bert": {"position", "token_type"}, "deberta": {"relative_table"}}
    assert kept == {"kernel", "token"} | tables.get(name, set())


@pytest.mark.parametrize("decay", [0.0, 1.5])
def test_refuses_nonsense(decay):
    with pytest.raises(InputError, match=rf"layer_decay must be in \(0, 1\]: got {decay}"):
        AdamW(schedule=Constant(value=0.1), layer_decay=decay)


def test_the_depth_is_the_model_s_though_its_layers_are_frozen():
    axes = {"model": {"embedding": {"token": ("vocab", "embed")}}}
    updates = {"model": {"embedding": {"token": jnp.ones((2, 3))}}}
    decayed = decayed_by_layer(optax.identity(), 0.5, axes, ("embedding",), depth=2)
    scaled, _ = decayed.update(updates, ())
    np.testing.assert_allclose(scaled["model"]["embedding"]["token"], 0.125)
