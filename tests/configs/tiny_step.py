"""Two steps of a config at a tiny size, on rows of random tokens."""

import jax
import numpy as np

from t5x_lite.config.batches import empty_row
from t5x_lite.core.sharding import MeshConfig, make_mesh
from t5x_lite.inference.loading import learner_of
from t5x_lite.optim.partial import joint_optimizer
from t5x_lite.train.step import init_state, make_train_step, state_shardings


def batch_of(data):
    """Rows of random tokens, without padding."""
    rng = np.random.default_rng(0)
    found = {}
    for name, value in empty_row(data).items():
        shape = (data.batch_size, *value.shape[1:])
        if name.endswith("_tokens"):
            found[name] = rng.integers(5, 50, shape).astype(np.int32)
        elif name == "teacher_scores":
            found[name] = rng.uniform(0, 5, shape).astype(np.float32)
        elif name.endswith(("positions", "word_ids")):
            found[name] = np.broadcast_to(np.arange(shape[-1], dtype=np.int32), shape)
        else:
            found[name] = np.full(shape, int(name.endswith("segment_ids")), np.int32)
    return found


def moved_by_two_steps(experiment):
    """Whether each parameter has moved; the loss and the gradient are numbers."""
    learner = learner_of(experiment)
    updates, mesh = learner.updates(), make_mesh(MeshConfig())
    layout = state_shardings(mesh, learner.axes, learner.optimizer_axes())
    state = init_state(learner.init, joint_optimizer(updates), layout, seed=0)
    before = jax.tree.map(np.asarray, state.params)
    step = make_train_step(updates, mesh=mesh, layout=layout, seed=0, microbatches=2)
    # The rate of the first step is 0 where it is warmed up.
    for _ in range(2):
        state, metrics = step(state, batch_of(experiment.data))
    assert np.isfinite(metrics["loss"])
    assert float(metrics["gradient_norm"]) > 0
    return jax.tree.map(lambda a, b: np.any(a != np.asarray(b)), before, state.params)
