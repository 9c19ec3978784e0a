"""Invertible adapters after the embeddings, and their inverse before a tied output."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_lite.adapters.bottleneck import seq_bn
from t5x_lite.adapters.bottleneck_variants import Invertible, Nice, seq_bn_inv
from t5x_lite.adapters.grammar import parse_module, parse_trees, write_module
from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import count_parameters, flatten
from t5x_lite.models.encoder import BertConfig
from t5x_lite.models.lm import LMConfig
from t5x_lite.objectives.electra import Electra
from t5x_lite.objectives.learner import Learner
from t5x_lite.objectives.masked_lm import MaskedLM
from tests.adapters.hosts import HOSTS, LABELLED, SIZES, learner, outputs, random


@pytest.mark.parametrize("size", [8, 7])
def test_the_inverse_is_exact(size):
    nice = Nice(size, reduction=2, rngs=nnx.Rngs(0))
    graphdef, state = nnx.split(nice)
    nice = nnx.merge(graphdef, random(state))
    x = jnp.asarray(np.random.default_rng(0).standard_normal((2, 3, size)), jnp.float32)
    y = nice(x)
    assert np.abs(y - x).max() > 0.1
    np.testing.assert_allclose(nice.inverse(y), x, rtol=1e-6, atol=1e-6)
    half = size // 2  # by hand: the first half reads the second alone
    other = x.at[..., :half].add(1.0)
    np.testing.assert_allclose(nice(other)[..., :half], y[..., :half] + 1.0, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_the_output_of_a_masked_language_model_is_inverted():
    model = HOSTS["bert"][0]
    made = Learner.of(model, MaskedLM(mask_id=3), adapters=(Invertible(),))
    plain = Learner.of(model, MaskedLM(mask_id=3))
    params = random(made.shapes)
    base = {part: params[part] for part in params if part != "adapters"}
    states = jnp.asarray(np.random.default_rng(0).standard_normal((2, 3, 8)), jnp.float32)
    bound, without = made.bind(params), plain.bind(base)
    nice = bound.model.invertible
    expected = nice.inverse(without.heads["mlm"].transform(states))
    np.testing.assert_allclose(bound.heads["mlm"].transform(states), expected, atol=1e-6)
    tokens, ids = LABELLED["encoder_input_tokens"], LABELLED["encoder_segment_ids"]
    start, _ = bound.model.start(tokens, segment_ids=ids)
    plainly, _ = without.model.start(tokens, segment_ids=ids)
    np.testing.assert_allclose(start, nice(plainly), rtol=1e-6, atol=1e-6)
    batch = {name: x for name, x in LABELLED.items() if name != "labels"}
    batch["encoder_word_ids"] = jnp.broadcast_to(jnp.arange(4), tokens.shape) * (tokens > 3)
    _, grads = jax.value_and_grad(lambda p: made.loss(p, batch, jax.random.key(0)).value())(params)
    own = [x for path, x in flatten(grads).items() if path.startswith("adapters/")]
    assert len(own) == 8
    assert all(np.abs(x).max() > 0 for x in own)


def test_the_generators_head_of_electra_stays():
    model = HOSTS["bert"][0]
    made = Learner.of(model, Electra(mask_id=3, generator=model), adapters=(Invertible(),))
    bound = made.bind(random(made.shapes))
    assert bound.model.invertible is not None
    assert all(bound.heads[name].inverse is None for name in made.heads if name == "mlm")


def test_a_t5_has_it_in_its_encoder_and_decodes():
    made, batch = learner("t5", Invertible())
    params = random(made.shapes)
    inputs, targets = batch["encoder_input_tokens"], batch["decoder_input_tokens"]

    @jax.jit
    def run(params):
        model = made.bind_model(params)
        logits, _cache = model.prepared().prefill(inputs, max_length=2)
        return model(inputs, targets), logits, model.encode(inputs)

    whole, first, encoded = run(params)
    np.testing.assert_allclose(first, whole[:, 0], rtol=1e-5, atol=1e-5)
    plain, _ = learner("t5")
    base = {part: params[part] for part in params if part != "adapters"}
    assert np.abs(plain.bind_model(base).encode(inputs) - encoded).max() > 0.01


def test_a_language_below_a_task():
    """Stack(language, task): the languages change places, and a Stack of two inverts both."""
    model, objective, batch = HOSTS["bert"]
    languages = [seq_bn_inv(name=name, reduction=4.0) for name in ("en", "sw")]
    task = seq_bn(name="task", reduction=4.0)

    def of(use):
        return Learner.of(model, objective, adapters=(*languages, task), use=parse_trees(use))

    params = random(of("Stack(en, task)").shapes)
    params["adapters"]["sw"] = params["adapters"]["en"]
    for use in ("Stack(sw, task)", "Stack(en, task)"):
        np.testing.assert_array_equal(
            outputs(of(use), params, batch), outputs(of("Stack(en, task)"), params, batch)
        )
    both = of("Stack(en, sw)").bind_model(params).invertible
    x = jnp.asarray(np.random.default_rng(0).standard_normal((1, 2, 8)), jnp.float32)
    np.testing.assert_allclose(both.inverse(both(x)), x, rtol=1e-5, atol=1e-5)
    for use in ("Average(en, task)", "Parallel(en, task)"):
        with pytest.raises(
            InputError, match=r"uses the site encoder/invertible, which .* does not support"
        ):
            of(use)


def test_sizes_and_lines():
    base = BertConfig(
        vocab_size=8, d_model=768, d_ff=3072, num_heads=12, num_layers=12, max_positions=8
    )
    for adapter, size in ((Invertible(), 296_064), (seq_bn_inv(), 894_528 + 296_064)):
        made = Learner.of(base, HOSTS["bert"][1], adapters=(adapter,))
        assert count_parameters(made.shapes["adapters"]) == size
    assert parse_module("en = seq_bn_inv()") == seq_bn_inv(name="en")
    assert parse_module(write_module(Invertible(name="i", reduction=4))).reduction == 4


def test_what_cannot_be():
    with pytest.raises(InputError, match="reduction must be at least 1: got 0"):
        Invertible(reduction=0)
    with pytest.raises(
        InputError, match="an invertible adapter supports only the site 'invertible'"
    ):
        Invertible(sites=("mlp",))
    with pytest.raises(InputError, match="needs an embedding size of at least 18, got 8"):
        learner("bert", Invertible(reduction=9))
    made, _ = learner("bert", Invertible())
    with pytest.raises(InputError, match="the adapter at invertible cannot be merged into"):
        made.merged(random(made.shapes))
    lm = LMConfig(**SIZES, d_kv=4, num_layers=1).build(rngs=nnx.Rngs(0))
    with pytest.raises(InputError, match="needs a model with an encoder, but a LM"):
        Invertible().build(lm, rngs=nnx.Rngs(0))
