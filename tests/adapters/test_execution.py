"""However a model is run, its modules run with it: what they compute stays the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.adapters.bottleneck import seq_bn
from t5x_lite.adapters.lora import Lora
from t5x_lite.core.sharding import MeshConfig, make_mesh
from t5x_lite.core.trees import flatten
from t5x_lite.decoding.generate import Ensemble
from t5x_lite.decoding.sampling import Decoding
from t5x_lite.inference.generate import Generator
from t5x_lite.objectives.contrastive import Contrastive
from t5x_lite.objectives.learner import Learner
from t5x_lite.optim.config import AdamW, Constant
from t5x_lite.train.step import TrainState, make_train_step, state_shardings
from tests.adapters.hosts import HOSTS, learner, random

MODULES = (Lora(rank=2, alpha=4.0, sites=(".*attention/.*", "mlp/.*")), seq_bn(reduction=4.0))
RUNNING = {
    "t5": {"remat": "full", "unroll": True, "attention": "blocked"},
    "bert": {"remat": "full", "unroll": True, "attention": "blocked"},
    "deberta": {"remat": "dots", "unroll": True},
}


@pytest.mark.gate("t5")
@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.slow
def test_gradients_do_not_depend_on_how_layers_are_run(host):
    """One after the other or in a scan, recomputed or kept, with blocked or plain attention."""
    plain, batch = learner(host, *MODULES)
    other = Learner.of(
        plain.model.replace(**RUNNING[host]), plain.objective, adapters=plain.adapters
    )
    params = random(plain.shapes)

    def gradient(made):
        def loss(theta):
            return made.loss({**params, "adapters": theta}, batch).value()

        return flatten(jax.jit(jax.grad(loss))(params["adapters"]))

    expected, found = gradient(plain), gradient(other)
    for path, leaf in expected.items():
        scale = np.abs(np.asarray(leaf)).max()
        np.testing.assert_allclose(found[path], leaf, rtol=1e-4, atol=1e-5 * scale, err_msg=path)


class Words:
    """A vocabulary that writes ids as numbers."""

    def decode(self, ids):
        return " ".join(map(str, ids))


@pytest.mark.parametrize("how", [{"num_beams": 3, "num_return": 2}, {"temperature": 1.0}])
@pytest.mark.gate("how0")
@pytest.mark.slow
def test_decoding_and_ensembles_with_modules_are_those_of_the_merged_model(how):
    plain, batch = learner("t5")
    made, _ = learner("t5", MODULES[0])
    params = random(made.shapes)
    merged = {"model": jax.jit(made.merged)(params)}
    inputs = [row[row > 0] for row in np.asarray(batch["encoder_input_tokens"])[:3]]

    def answers(bind):
        generator = Generator(
            bind, Words(), batch_size=4, decoding=Decoding(max_decode_length=4, **how)
        )
        return generator.run({"with": params, "merged": merged}, inputs)

    attached = answers(lambda p: made.bind_model(p["with"]))
    expected = answers(lambda p: plain.bind_model(p["merged"]))
    both = answers(lambda p: Ensemble([made.bind_model(p["with"]), plain.bind_model(p["merged"])]))
    for found in (attached, both):
        assert [[one.text for one in each] for each in found] == [
            [one.text for one in each] for each in expected
        ]


@pytest.mark.exhaustive
def test_contrastive_parts_of_a_batch_are_the_whole_batch():
    """The rows of all parts meet, and modules get the gradient of the whole."""
    model, _, _ = HOSTS["bert"]
    rng = np.random.default_rng(0)
    batch = {
        "query_tokens": rng.integers(4, 16, (8, 4)),
        "query_segment_ids": np.ones((8, 4), int),
        "passage_tokens": rng.integers(4, 16, (8, 2, 5)),
        "passage_segment_ids": np.ones((8, 2, 5), int),
    }
    batch = {name: jnp.asarray(array, jnp.int32) for name, array in batch.items()}
    optimizer = AdamW(schedule=Constant(value=0.1), eps=1e-2, weight_decay=0.0)
    made = Learner.of(model, Contrastive(), adapters=MODULES, optimizer=optimizer)
    params = random(made.shapes)
    mesh, updates = make_mesh(MeshConfig()), made.updates()
    layout = state_shardings(mesh, made.axes, made.optimizer_axes())
    after = []
    for parts in (1, 2):
        state = TrainState(
            jnp.int32(0),
            jax.tree.map(jnp.copy, params),
            updates[0].optimizer.init(updates[0].part(params)),
        )
        step = make_train_step(updates, mesh=mesh, layout=layout, seed=0, microbatches=parts)
        state, metrics = step(jax.device_put(state, layout), batch)
        after.append((flatten(state.params), float(metrics["loss"])))
    np.testing.assert_allclose(after[0][1], after[1][1], rtol=1e-5)
    before, moved = flatten(params), []
    for path, leaf in after[0][0].items():
        np.testing.assert_allclose(after[1][0][path], leaf, atol=2e-5, err_msg=path)
        moved += [path] * bool(np.any(np.asarray(leaf) != np.asarray(before[path])))
    modules = [path for path in before if path.startswith("adapters/")]
    assert len(moved) > len(modules) / 2
    assert set(moved) <= set(modules)
