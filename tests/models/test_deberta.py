import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erf

from t5x_lite.core import trees
from t5x_lite.core.errors import InputError
from t5x_lite.models.deberta import DebertaConfig
from t5x_lite.nn.slots import bind, shapes
from t5x_lite.optim.config import decays

SMALL = DebertaConfig(
    vocab_size=30,
    d_model=12,
    d_ff=20,
    num_heads=3,
    num_layers=2,
    max_positions=10,
    position_buckets=4,
    enhanced_mask_decoder=True,
    dropout_rate=0.0,
    attention_dropout_rate=0.0,
    unroll=1,
)
TOKENS = np.array([[5, 7, 9, 11, 13, 15, 17], [6, 8, 10, 12, 0, 0, 0]], np.int32)


@functools.cache
def structure(config):
    return shapes(lambda rngs: config.build(rngs=rngs))


def random_params(config, seed=0):
    """Parameters of which none is left at 0 or 1."""
    rng = np.random.default_rng(seed)

    def fill(path, leaf):
        if path.endswith("norm/scale"):
            return jnp.asarray(rng.uniform(0.5, 1.5, leaf.shape), jnp.float32)
        return jnp.asarray(rng.normal(size=leaf.shape) * 0.4, jnp.float32)

    flat = {path: fill(path, leaf) for path, leaf in trees.flatten(structure(config)[1]).items()}
    return trees.unflatten(flat)


def model_of(config):
    return bind(structure(config)[0], random_params(config))


@functools.cache
def compiled(config):
    """The call and `masked_lm_states` as functions of parameters."""
    graphdef = structure(config)[0]

    @jax.jit
    def run(params, tokens, **rest):
        model = bind(graphdef, params)
        return model(tokens, **rest), model.masked_lm_states(tokens, **rest)

    return run


class Reference:
    """DeBERTa in NumPy, float64, for one row without padding; from the definitions."""

    def __init__(self, config, params):
        self.config = config
        flat = trees.flatten(params)
        self.params = {path: np.asarray(leaf, np.float64) for path, leaf in flat.items()}

    def norm(self, name, x, layer=None):
        scale, bias = (self.of(f"{name}/{part}", layer) for part in ("scale", "bias"))
        centred = x - x.mean(-1, keepdims=True)
        variance = np.square(centred).mean(-1, keepdims=True)
        return centred / np.sqrt(variance + self.config.norm_epsilon) * scale + bias

    def of(self, name, layer=None):
        array = self.params[name if layer is None else f"layers/{name}"]
        return array if layer is None else array[layer]

    def dense(self, name, x, layer):
        return x @ self.of(f"{name}/kernel", layer) + self.of(f"{name}/bias", layer)

    def to_model(self, x):
        return x @ self.params["projection/kernel"] if "projection/kernel" in self.params else x

    def embed(self, tokens):
        total = self.params["embedding/token"][tokens]
        if self.config.position_biased_input:
            total = total + self.params["embedding/position"][: len(tokens)]
        if self.config.token_types:
            total = total + self.params["embedding/token_type"][0]
        return self.norm("embedding/norm", self.to_model(total))

    def bucket(self, r):
        config = self.config
        buckets, most = config.position_buckets, config.max_positions
        span = buckets or most
        if buckets and abs(r) > buckets // 2:
            mid = buckets // 2
            reach = min(abs(r), most - 1)
            far = math.ceil(math.log(reach / mid) / math.log((most - 1) / mid) * (mid - 1))
            r = int(math.copysign(far + mid, r))
        return min(max(r + span, 0), 2 * span - 1)

    def attention(self, x, source, layer):
        config = self.config
        heads = (-1, config.num_heads, config.d_model // config.num_heads)
        table = self.params["relative_table"]
        table = self.norm("relative_norm", table) if config.norm_relative else table

        def project(name, x):
            return self.dense(f"attention/{name}", x, layer).reshape(heads)

        query, key, value = project("query", x), project("key", source), project("value", source)
        own = not config.share_position_projections
        far_key = project("position_key" if own else "key", table)
        far_query = project("position_query" if own else "query", table)
        index = np.array([[self.bucket(q - k) for k in range(len(x))] for q in range(len(x))])
        scores = np.einsum("qhd,khd->hqk", query, key)
        scores += np.einsum("qhd,qkhd->hqk", query, far_key[index])
        scores += np.einsum("khd,qkhd->hqk", key, far_query[index])
        scores /= math.sqrt(3 * heads[-1])
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", weights, value).reshape(x.shape)
        return self.dense("attention/out", mixed, layer)

    def layer(self, x, source, layer):
        x = self.norm("attention_norm", x + self.attention(x, source, layer), layer)
        hidden = self.dense("mlp/wi", x, layer)
        hidden = hidden * (1 + erf(hidden / math.sqrt(2))) / 2
        return self.norm("mlp_norm", x + self.dense("mlp/wo", hidden, layer), layer)

    def convolution(self, before, after):
        kernel, length = self.params["convolution/kernel"], len(before)
        reach = len(kernel) // 2
        out = np.zeros_like(before) + self.params["convolution/bias"]
        for place in range(length):
            for tap in range(len(kernel)):
                if 0 <= place + tap - reach < length:
                    out[place] += before[place + tap - reach] @ kernel[tap]
        assert self.config.conv_activation == "tanh"
        return self.norm("convolution/norm", after + np.tanh(out))

    def states(self, tokens):
        """The states before each layer and after the last."""
        states = [self.embed(tokens)]
        for layer in range(self.config.num_layers):
            x = self.layer(states[-1], states[-1], layer)
            if layer == 0 and self.config.conv_kernel_size:
                x = self.convolution(states[-1], x)
            states.append(x)
        return states

    def masked_lm_states(self, tokens):
        hidden, last = self.states(tokens)[-2], self.config.num_layers - 1
        query = hidden + self.to_model(self.params["embedding/position"][: len(tokens)])
        return self.layer(self.layer(query, hidden, last), hidden, last)


VARIANTS = {
    "v3": {},
    "own projections": {"share_position_projections": False, "norm_relative": False},
    "one layer": {"num_layers": 1, "position_buckets": 0},
    "convolution": {"conv_kernel_size": 3, "num_layers": 3},
    "wide convolution": {"conv_kernel_size": 5, "position_biased_input": True, "token_types": 2},
    "projected": {"embedding_size": 8, "position_biased_input": True, "position_buckets": 8},
}


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.slow
def test_the_definition(name):
    config = SMALL.replace(**VARIANTS[name])
    params = random_params(config)
    hidden, states = compiled(config)(params, TOKENS)
    reference = Reference(config, params)
    for row, tokens in enumerate(TOKENS):
        tokens = tokens[tokens > 0]
        ours, ours_masked = hidden[row, : len(tokens)], states[row, : len(tokens)]
        np.testing.assert_allclose(ours, reference.states(tokens)[-1], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(
            ours_masked, reference.masked_lm_states(tokens), rtol=1e-4, atol=1e-4
        )
    assert np.isfinite(hidden).all()
    assert np.isfinite(states).all()


@pytest.mark.exhaustive
def test_packed_is_separate():
    config = SMALL.replace(conv_kernel_size=3, position_biased_input=True)
    params, run = random_params(config), compiled(config)
    ids = np.array([[1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 0, 0]], np.int32)
    packed = np.array([[5, 7, 9, 11, 13, 15, 17, 6, 8, 10, 12, 0, 0]], np.int32)
    positions = np.array([[*range(7), *range(4), 0, 0]], np.int32)
    # Positions that are not given are counted.
    for given in ({}, {"positions": positions}):
        together = run(params, packed, segment_ids=ids, **given)
        for ours, apart in zip(together, run(params, TOKENS), strict=True):
            np.testing.assert_allclose(ours[0, :7], apart[0], rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(ours[0, 7:11], apart[1, :4], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_padding_changes_nothing_and_its_embedding_is_zero():
    config = SMALL.replace(conv_kernel_size=3)
    params, run = random_params(config), compiled(config)
    for padded, exact in zip(run(params, TOKENS), run(params, TOKENS[1:, :4]), strict=True):
        np.testing.assert_allclose(padded[1, :4], exact[0], rtol=1e-5, atol=1e-5)
    x, mask = bind(structure(config)[0], params).start(jnp.asarray(TOKENS))
    assert (x[1, 4:] == 0).all()
    assert (x[1, :4] != 0).all()
    assert not mask.dense(7)[1, 0, 4:].any()


@pytest.mark.slow
def test_padding_may_be_longer_than_the_table_of_positions():
    config = SMALL.replace(max_positions=6, num_layers=1)
    graphdef = structure(config)[0]
    tokens = jnp.zeros((1, 12), jnp.int32).at[0, :3].set(TOKENS[0, :3])
    ids = (tokens > 0).astype(jnp.int32)

    def loss(params):
        states = bind(graphdef, params).masked_lm_states(tokens, segment_ids=ids)
        return jnp.square(states[:, :3]).sum()

    value, grads = jax.jit(jax.value_and_grad(loss))(random_params(config))
    assert np.isfinite(value)
    for path, leaf in trees.flatten(grads).items():
        assert np.isfinite(leaf).all(), path


def test_weight_decay_spares_biases_and_norms_alone():
    config = SMALL.replace(conv_kernel_size=3, embedding_size=8)
    spared = {
        path for path, names in trees.flatten(structure(config)[2]).items() if not decays(names)
    }
    assert all(path.endswith(("/bias", "norm/scale")) for path in spared)
    assert "relative_table" not in spared
    assert "relative_norm/scale" in spared


@pytest.mark.slow
def test_rows_of_padding_alone_are_finite_with_finite_gradients():
    graphdef = structure(SMALL)[0]
    tokens = jnp.zeros((1, 3), jnp.int32)

    def loss(params):
        return jnp.square(bind(graphdef, params).masked_lm_states(tokens)).sum()

    value, grads = jax.jit(jax.value_and_grad(loss))(random_params(SMALL))
    assert np.isfinite(value)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))


def test_unrolled_is_scanned():
    params = random_params(SMALL)
    found = compiled(SMALL.replace(unroll=True))(params, TOKENS)
    for ours, theirs in zip(found, compiled(SMALL)(params, TOKENS), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting",
    [
        {"unroll": True, "remat": "full"},
        pytest.param({"unroll": 2}, marks=pytest.mark.exhaustive),
        pytest.param({"remat": "dots"}, marks=pytest.mark.exhaustive),
    ],
)
def test_how_layers_are_run_changes_nothing(setting):
    config = SMALL.replace(num_layers=3, conv_kernel_size=3)
    tokens = jnp.asarray(TOKENS)
    params = random_params(config)

    def loss(graphdef):
        def of(params):
            model = bind(graphdef, params)
            return jnp.square(model.masked_lm_states(tokens, key=jax.random.key(1))).sum()

        return jax.jit(jax.value_and_grad(of))(params)

    plain = config.replace(dropout_rate=0.1)
    wanted, wanted_grads = loss(structure(plain)[0])
    found, grads = loss(structure(plain.replace(**setting))[0])
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    for ours, theirs in zip(jax.tree.leaves(grads), jax.tree.leaves(wanted_grads), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("share", "block"), [(True, 3), (False, 7)])
@pytest.mark.slow
def test_blocks_of_queries_are_the_same_function(share, block):
    config = SMALL.replace(num_layers=2, conv_kernel_size=3, dropout_rate=0.1)
    config = config.replace(enhanced_mask_decoder=True, attention_dropout_rate=0.3)
    config = config.replace(share_attention_dropout=share)
    # Without sharing, one block has the draws of plain attention.
    blocked = config.replace(attention="blocked", attention_block=block, remat="dots")
    params = random_params(config)

    @jax.jit
    def both(params):
        def gradient(graphdef):
            def loss(params):
                model = bind(graphdef, params)
                states = model.masked_lm_states(jnp.asarray(TOKENS), key=jax.random.key(1))
                return jnp.square(states).sum()

            return jax.value_and_grad(loss)(params)

        return gradient(structure(config)[0]), gradient(structure(blocked)[0])

    (wanted, wanted_grads), (found, grads) = both(params)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    for ours, theirs in zip(jax.tree.leaves(grads), jax.tree.leaves(wanted_grads), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_a_key_turns_dropout_on():
    config = SMALL.replace(dropout_rate=0.3, attention_dropout_rate=0.3)
    params, run = random_params(config), compiled(config)
    first, again, other = (run(params, TOKENS, key=jax.random.key(n)) for n in (0, 0, 1))
    for x, same, different, plain in zip(first, again, other, run(params, TOKENS), strict=True):
        np.testing.assert_array_equal(x, same)
        assert not np.allclose(x, different)
        assert not np.allclose(x, plain)


def test_without_the_decoder_the_head_reads_the_output():
    config = SMALL.replace(enhanced_mask_decoder=False, dropout_rate=0.3)
    hidden, states = compiled(config)(random_params(config), TOKENS, key=jax.random.key(0))
    np.testing.assert_array_equal(hidden, states)
    assert model_of(config).tables().keys() == {"token"}


def test_tables_by_name():
    shapes = {name: table.shape for name, table in model_of(SMALL).tables().items()}
    assert shapes == {"token": (30, 12), "position": (10, 12)}


def test_parameters_are_sharded_by_their_axes():
    config = SMALL.replace(conv_kernel_size=3, embedding_size=8, share_position_projections=False)
    axes = trees.flatten(structure(config)[2])
    assert axes["layers/attention/position_key/kernel"] == ("layers", "embed", "joined_kv")
    assert axes["relative_table"] == (None, "embed")
    assert axes["projection/kernel"] == ("mlp", "embed")
    assert axes["convolution/kernel"] == (None, "mlp", "embed")


@pytest.mark.slow
def test_bfloat16_is_near_float32():
    config = SMALL.replace(conv_kernel_size=3)
    params, run = random_params(config), compiled(config)
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    for found, wanted in zip(run(half, TOKENS), run(params, TOKENS), strict=True):
        assert found.dtype == jnp.bfloat16
        error = np.abs(np.asarray(found, np.float32) - wanted)[TOKENS > 0]
        assert error.mean() < 0.05


def test_rows_longer_than_the_table_of_positions():
    tokens, config = np.ones((1, 11), np.int32), SMALL.replace(enhanced_mask_decoder=False)
    with pytest.raises(InputError, match="the model has only 10 positions"):
        compiled(SMALL)(random_params(SMALL), tokens)
    # Distances have no end.
    hidden, _ = compiled(config)(random_params(config), tokens)
    assert hidden.shape == (1, 11, 12)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"position_terms": ("p2p", "c2p")}, "one or more of the terms c2p, p2c"),
        ({"attention": "cudnn"}, "must be .auto., .plain., .blocked. or .pallas., because"),
        ({"position_buckets": 40}, "are not compatible: log buckets need"),
        ({"max_relative_positions": 2}, "are not compatible: log buckets need"),
        ({"conv_kernel_size": 2}, "conv_kernel_size must be odd"),
        ({"num_heads": 5}, "multiple of model.num_heads"),
    ],
)
def test_what_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        SMALL.replace(**changes)
