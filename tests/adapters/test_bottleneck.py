import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_lite.adapters.bottleneck import Bottleneck, BottleneckBlock, double_seq_bn, par_bn, seq_bn
from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import count_parameters, flatten
from t5x_lite.models.published import bert_base, t5_base
from t5x_lite.nn.dense import LayerNorm
from t5x_lite.nn.masks import Visibility
from t5x_lite.nn.slots import Around
from t5x_lite.objectives.learner import Learner
from t5x_lite.objectives.likelihood import Seq2Seq
from t5x_lite.objectives.task_heads import Classify
from tests.adapters.hosts import learner, random

F = jnp.array([[[1.0, -2.0]]])
X = jnp.array([[[3.0, 4.0]]])
SOURCE = jnp.array([[[0.5, 0.25]]])
AROUND = Around(SOURCE)


def by_hand(config):
    block = BottleneckBlock(config, 2, rngs=nnx.Rngs(0))
    block.down.kernel[...] = jnp.array([[1.0], [0.5]])
    block.down.bias[...] = jnp.array([0.25])
    block.up.kernel[...] = jnp.array([[2.0, -1.0]])
    block.up.bias[...] = jnp.array([0.5, 0.0])
    return block


def branch(read, act=jax.nn.relu):
    hidden = act(read @ jnp.array([[1.0], [0.5]]) + 0.25)
    return hidden @ jnp.array([[2.0, -1.0]]) + jnp.array([0.5, 0.0])


@pytest.mark.parametrize(
    ("config", "with_norm", "read", "act"),
    [
        (seq_bn(), False, lambda norm: F + X, jax.nn.relu),
        (seq_bn(), True, lambda norm: norm(F + X), jax.nn.relu),
        (double_seq_bn(), True, lambda norm: F, jax.nn.swish),
        (par_bn(), False, lambda norm: X, jax.nn.relu),
        (par_bn(), True, lambda norm: X, jax.nn.relu),
        (par_bn(reads="normed"), False, lambda norm: SOURCE, jax.nn.relu),
    ],
)
def test_by_hand(config, with_norm, read, act):
    norm = (lambda y: y / 10.0) if with_norm else None
    expected = F + X + config.scale * branch(read(norm), act)
    np.testing.assert_allclose(
        by_hand(config)(F, X, norm, AROUND),
        expected if norm is None else norm(expected),
        rtol=1e-6,
    )


def halved(y):
    return y / 2.0


NORM = LayerNorm(2, 1e-5)
B = branch(halved(F + X))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"residual": "post_add"}, halved(B + F + X + X)),
        ({"residual": "post_ln"}, halved(B + halved(F + X) + X)),
        ({"original_ln_after": False}, B + F),
        ({"ln_after": "branch"}, halved(NORM(B) + F + X)),
        ({"ln_after": "sum"}, halved(NORM(B + F) + X)),
        ({"ln_before": True}, halved(branch(NORM(halved(F + X))) + F + X)),
        ({"scale": "learned"}, halved(3.0 * B + F + X)),
        ({"scale": "channel"}, halved(3.0 * B + F + X)),
    ],
)
def test_options_by_hand(options, expected):
    block = by_hand(seq_bn(**options))
    if "scale" in options:
        assert block.scale.shape == ((1,) if options["scale"] == "learned" else (2,))
        block.scale[...] = 3.0 * block.scale[...]
    np.testing.assert_allclose(block(F, X, halved, AROUND), expected, rtol=1e-5)


def test_dropout():
    block = by_hand(seq_bn(dropout_rate=0.5))
    plain = block(F, X, None, AROUND)
    seen = {
        tuple(np.asarray((block(F, X, None, Around(X, None, jax.random.key(i))) - F - X)[0, 0]))
        for i in range(20)
    }
    added = np.asarray((plain - F - X)[0, 0])
    assert {len(seen), *(value for each in seen for value in each)} <= {
        4,
        0.0,
        *(2.0 * added).tolist(),
    }


@pytest.mark.slow
def test_the_gate_knows_neither_padding_nor_the_future():
    """The library's mean takes both in: its result depends on how a row is padded."""
    rng = np.random.default_rng(0)
    row = jnp.asarray(rng.standard_normal((1, 3, 2)), jnp.float32)
    padded = jnp.pad(row, ((0, 0), (0, 2), (0, 0)), constant_values=9.0)
    block = by_hand(seq_bn(gate="real_tokens"))
    block.gate.kernel[...] = jnp.array([[1.0], [-2.0]])

    def call(x, mask, block=block):
        return block(x, x, None, Around(x, mask))

    def keys(*real):
        return Visibility(keys=jnp.array([real]))

    alone = call(row, keys(1, 1, 1))
    np.testing.assert_allclose(call(padded, keys(1, 1, 1, 0, 0))[:, :3], alone, rtol=1e-6)
    np.testing.assert_allclose(call(padded, keys(1, 1, 1, 0, 0).dense(5))[:, :3], alone, rtol=1e-6)
    gates = jax.nn.sigmoid(2.0 * row @ block.gate.kernel[...])
    np.testing.assert_allclose(alone, 2.0 * row + gates.mean() * branch(2.0 * row), rtol=1e-5)
    segments = jnp.array([[1, 1, 1, 2, 2]])
    packed = Visibility(keys=segments, queries=segments)
    np.testing.assert_allclose(call(padded, packed)[:, :3], alone, rtol=1e-6)
    decoder = call(row, None)
    np.testing.assert_allclose(decoder, 2.0 * row + gates * branch(2.0 * row), rtol=1e-5)
    theirs = by_hand(seq_bn(gate="all_tokens"))
    theirs.gate.kernel[...] = block.gate.kernel[...]
    np.testing.assert_allclose(call(row, None, theirs), alone, rtol=1e-5)
    assert np.abs(call(padded, keys(1, 1, 1, 0, 0), theirs)[:, :3] - alone).max() > 1e-2


@pytest.mark.parametrize(
    ("model", "objective", "config", "count"),
    [
        (bert_base(), Classify(num_classes=2), seq_bn(), 894_528),
        (bert_base(), Classify(num_classes=2), double_seq_bn(), 1_789_056),
        (bert_base(), Classify(num_classes=2), par_bn(), 7_091_712),
        (t5_base(), Seq2Seq(), seq_bn(), 1_789_056),
        (t5_base(), Seq2Seq(), double_seq_bn(), 3_578_112),
        (t5_base(), Seq2Seq(), double_seq_bn(cross=True), 4_472_640),
    ],
)
def test_sizes(model, objective, config, count):
    made = Learner.of(model, objective, adapters=(config,))
    assert count_parameters(made.shapes["adapters"]) == count


def test_beginnings():
    block = BottleneckBlock(seq_bn(), 768, rngs=nnx.Rngs(0))
    assert float(jnp.std(block.up.kernel[...])) == pytest.approx(0.02, rel=0.1)
    mam = BottleneckBlock(par_bn(), 768, rngs=nnx.Rngs(0))
    assert mam.down.kernel.shape == (768, 384)
    assert not np.any(mam.up.kernel[...])
    assert np.all(np.abs(mam.down.kernel[...]) <= 768**-0.5)
    houlsby = BottleneckBlock(seq_bn(init="houlsby"), 768, rngs=nnx.Rngs(0))
    for dense in (houlsby.down, houlsby.up):
        kernel = np.asarray(dense.kernel[...])
        assert np.abs(kernel).max() <= 0.02
        assert kernel.std() == pytest.approx(0.01 * 0.88, rel=0.02)


@pytest.mark.exhaustive
def test_layers_of_other_widths():
    """Layers count from 0, the decoder's after the encoder's; what is masked is 0 and not read."""
    config = seq_bn(reduction=4.0, reductions=((3, 2.0),), leave_out=(1,))
    made, batch = learner("t5", config)
    params = jax.jit(made.init)(jax.random.key(0))
    own = flatten(params["adapters"])
    down = "bottleneck/{}/after_mlp/down/kernel"
    assert own[down.format("encoder")].shape == (2, 8, 2)
    assert own[down.format("decoder")].shape == (2, 8, 4)
    assert not np.any(own[down.format("encoder")][1])
    assert not np.any(own[down.format("decoder")][0, :, 2:])
    assert np.all(own[down.format("decoder")][1])
    grads = flatten(jax.grad(lambda p: made.loss(p, batch).value())(random(made.shapes)))
    grads = {path: leaf for path, leaf in grads.items() if path.startswith("adapters/")}
    assert not any(np.any(leaf[1]) for path, leaf in grads.items() if "encoder" in path)
    assert not np.any(grads[f"adapters/{down.format('decoder')}"][0, :, 2:])
    bound = made.bind(params)
    each = 2 * 8 * 2 + 2 + 8
    assert bound.adapters.bottleneck.num_unused() == each + 2 * (2 * 8 + 1)
    with pytest.raises(InputError, match="names layer 4, but the model's layers are 0 to 3"):
        learner("t5", seq_bn(leave_out=(4,)))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"reduction": 0.0}, "reduction must be above 0, got 0"),
        ({"reductions": ((1, -1.0),)}, "reduction must be above 0, got -1"),
        ({"dropout_rate": 1.0}, "dropout_rate must be in"),
    ],
)
def test_what_is_wrong(fields, message):
    with pytest.raises(InputError, match=message):
        Bottleneck(**fields)


def test_a_gate_that_knows_the_future_is_refused():
    with pytest.raises(InputError, match="'all_tokens' would read future tokens in a decoder"):
        learner("t5", seq_bn(gate="all_tokens"))
