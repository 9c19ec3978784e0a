"""Tokens through their experts: against all experts written out, and on a mesh."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_lite.nn.dense import MLP
from t5x_lite.nn.experts import ExpertWeights, through_experts

NUM, WIDTH, HIDDEN = 4, 8, 12


def operands(*, gated=True, bias=False, rows=(4, 96), top=2, seed=0):
    """Tokens, their choice and weights, and the experts."""
    rng = np.random.default_rng(seed)

    def draw(*shape):
        return jnp.asarray(0.5 * rng.standard_normal(shape), jnp.float32)

    experts = ExpertWeights(
        wi=draw(NUM, WIDTH, HIDDEN),
        wo=draw(NUM, HIDDEN, WIDTH),
        gate=draw(NUM, WIDTH, HIDDEN) if gated else None,
        bi=draw(NUM, HIDDEN) if bias else None,
        bo=draw(NUM, WIDTH) if bias else None,
    )
    logits = rng.standard_normal((*rows, NUM)) + np.array([2.0, 0.0, 0.0, -9.0])  # one is rare
    chosen = jnp.asarray(np.argsort(-logits, axis=-1)[..., :top].astype(np.int32))
    return draw(*rows, WIDTH), chosen, jax.nn.softmax(draw(*rows, top)), experts


def written_out(x, chosen, weights, experts, activation):
    """Every expert of every token, weighed."""
    share = jnp.sum(jax.nn.one_hot(chosen, NUM) * weights[..., None], axis=-2)
    act = jax.nn.relu if activation == "relu" else lambda y: jax.nn.gelu(y, approximate=True)
    hidden = jnp.einsum("btd,edf->betf", x, experts.wi)
    hidden = hidden if experts.bi is None else hidden + experts.bi[:, None]
    if experts.gate is None:
        hidden = act(hidden)
    else:
        hidden = act(jnp.einsum("btd,edf->betf", x, experts.gate)) * hidden
    out = jnp.einsum("betf,efd->betd", hidden, experts.wo)
    out = out if experts.bo is None else out + experts.bo[:, None]
    return jnp.einsum("betd,bte->btd", out, share)


@pytest.mark.parametrize(
    ("gated", "bias", "top", "activation"), [(True, False, 2, "gelu_new"), (False, True, 1, "relu")]
)
def test_outputs_and_gradients_are_those_of_all_experts_weighed(gated, bias, top, activation):
    x, chosen, weights, experts = operands(gated=gated, bias=bias, top=top)

    def of(run):
        def loss(x, weights, experts):
            out = run(x, chosen, weights, experts)
            return jnp.sum(out * jnp.cos(jnp.arange(out.size).reshape(out.shape))), out

        return jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(x, weights, experts)

    found = of(lambda *given: through_experts(*given, activation=activation))
    expected = of(lambda *given: written_out(*given, activation))
    for ours, wanted in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-4, atol=1e-5)
        assert np.abs(wanted).max() > 0


def test_one_expert_of_all_tokens_is_its_block():
    mlp = MLP(WIDTH, HIDDEN, activation="gelu_new", gated=True, rngs=nnx.Rngs(0))
    x = operands()[0]
    base = ExpertWeights(
        wi=mlp.wi_1.kernel[...][None], wo=mlp.wo.kernel[...][None], gate=mlp.wi_0.kernel[...][None]
    )
    none, one = jnp.zeros((*x.shape[:2], 1), jnp.int32), jnp.ones((*x.shape[:2], 1), jnp.float32)
    found = through_experts(x, none, one, base, activation="gelu_new")
    np.testing.assert_allclose(found, mlp(x), rtol=1e-5, atol=1e-6)


def test_nothing_but_what_is_chosen_is_computed():
    """Eight experts take the products of one but for a block of each that is not full."""
    x, chosen, weights, experts = operands(rows=(16, 512), top=1)
    wide = jax.tree.map(lambda y: jnp.concatenate([y, y]), experts)

    def products(experts):
        run = jax.jit(lambda *given: through_experts(*given, activation="relu"))
        text = run.lower(x, chosen, weights, experts).as_text()
        # The loop is over blocks of 128 tokens: the largest product in it has as many rows.
        return [line for line in text.splitlines() if "dot_general" in line]

    assert len(products(experts)) == len(products(wide)) == 3
    assert all("128x" in line for line in products(wide))


def gradients(given):
    """Of a function of the result, by tokens, weights and experts; and the result."""
    x, chosen, weights, experts = given

    def loss(x, weights, experts):
        out = through_experts(x, chosen, weights, experts, activation="relu")
        return jnp.sum(out * jnp.cos(jnp.arange(out.size).reshape(out.shape))), out

    return jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(x, weights, experts)


MESH = """
import sys
sys.path.insert(0, sys.argv[1])
import jax
import numpy as np
import test_experts as cases
from t5x_lite.core.sharding import MeshConfig, make_mesh

given = cases.operands()
expected = jax.tree.leaves(cases.gradients(given))
for sizes in ({"tensor": 4, "fsdp": 2}, {"tensor": 2, "sequence": 2}):
    with jax.set_mesh(make_mesh(MeshConfig(**sizes))):
        found = jax.tree.leaves(cases.gradients(given))
    for ours, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-5, atol=1e-5)
print(len(found))
"""


@pytest.mark.slow
def test_split_over_eight_devices_it_is_the_same():
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
    done = subprocess.run(
        [sys.executable, "-c", MESH, str(Path(__file__).parent)],
        env={**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) == 6
