"""A program for tests/e2e/test_meshes.py and test_processes.py: trains a tiny T5 on made-up rows.

    python tests/e2e/tiny_training.py meshes                         # eight devices, many meshes
    python tests/e2e/tiny_training.py process PORT COUNT INDEX JOB   # one of several processes

It writes one JSON object on standard output, and in the jobs that wait for a signal, "endless" and
"preempted", one line a step, in which the process of index $SLOW (1) pauses.
"""

import functools
import itertools
import json
import os
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

from t5x_lite.config import Hosts
from t5x_lite.core.sharding import (
    MeshConfig,
    Parts,
    batch_part,
    check_divisible,
    make_mesh,
    put_batch,
)
from t5x_lite.decoding.sampling import Decoding
from t5x_lite.evaluate.results import LossEvaluator
from t5x_lite.inference.generate import Generator
from t5x_lite.models.t5 import T5Config
from t5x_lite.nn.slots import bind, init, shapes
from t5x_lite.objectives.learner import Bound, Learner
from t5x_lite.objectives.likelihood import Seq2Seq
from t5x_lite.optim.config import Adafactor, Constant
from t5x_lite.optim.partial import Update
from t5x_lite.train import hosts, stopping
from t5x_lite.train.step import init_state, make_train_step, state_shardings
from t5x_lite.train.stopping import StopSignals
from tests.e2e.encoder_gradients import DESCENT, LEARNERS, pairs

ROWS = 8
STEPS = 20
MODEL = T5Config(
    vocab_size=64,
    d_model=16,
    d_kv=4,
    d_ff=32,
    num_heads=4,
    num_encoder_layers=1,
    num_decoder_layers=1,
    dropout_rate=0.0,
)
OPTIMIZER = Adafactor(schedule=Constant(value=0.01), min_dim_size_to_factor=8, clip_norm=1.0)


def rows(step):
    """A batch of 8 rows, of unequal lengths; equal in every process."""
    rng = np.random.default_rng(step)
    inputs, targets = (rng.integers(2, 64, size=(ROWS, 8)).astype(np.int32) for _ in range(2))
    for row in range(ROWS):
        inputs[row, rng.integers(4, 9) :] = 0
        targets[row, rng.integers(1, 9) :] = 0
    return {
        "encoder_input_tokens": inputs,
        "decoder_input_tokens": np.pad(targets[:, :-1], ((0, 0), (1, 0))),
        "decoder_target_tokens": targets,
        "decoder_loss_weights": (targets > 0).astype(np.float32),
    }


class Training:
    """A model, an optimizer and their step on a mesh.

    Args:
      mesh: the devices.
      dropout: the rate.
      microbatches: see `make_train_step`.
      keep_gradient: whether the optimizer's state is the last gradient, and nothing is learnt.
    """

    def __init__(self, mesh, *, dropout=0.0, microbatches=1, keep_gradient=False):
        self.mesh = mesh
        self.learner = functools.partial(_learner, MODEL.replace(dropout_rate=dropout))
        self.graphdef, abstract, axes = shapes(self.learner)
        check_divisible(mesh, axes, abstract, num_heads=MODEL.num_heads)
        optimizer, names = OPTIMIZER.build(axes), OPTIMIZER.state_axes(axes, abstract)
        if keep_gradient:
            optimizer, names = optax.GradientTransformation(lambda params: params, _kept), axes
        layout = state_shardings(mesh, axes, names)
        self.state = init_state(functools.partial(init, self.learner), optimizer, layout, seed=0)
        self.step = make_train_step(
            [Update(self.loss, optimizer, OPTIMIZER.schedule.build())],
            mesh=mesh,
            layout=layout,
            seed=0,
            microbatches=microbatches,
        )

    def loss(self, params, batch, key=None):
        return bind(self.graphdef, params)(batch, key=key)

    def run(self, steps=STEPS):
        """[loss, gradient norm, accuracy] of every step."""
        metrics = [self.advance(step) for step in range(steps)]
        return [
            [float(found[name]) for name in ("loss", "gradient_norm", "token_accuracy")]
            for found in metrics
        ]

    def advance(self, step):
        part, parts = batch_part(self.mesh)
        own = slice(part * ROWS // parts, (part + 1) * ROWS // parts)
        batch = {name: value[own] for name, value in rows(step % 2).items()}
        with jax.set_mesh(self.mesh):
            self.state, metrics = self.step(self.state, put_batch(batch, self.mesh))
        return metrics

    def sums(self):
        """Of every leaf of the state, numbers that every process can read: its sums."""
        return sums_of((self.state.params, self.state.optimizer))

    def evaluate(self):
        """The held-out loss, and what the model writes."""
        loss = LossEvaluator(self.loss, lambda: [rows(100), rows(101)], mesh=self.mesh)
        generator = Generator(
            lambda params: bind(self.graphdef, params).model,
            _Numbers(),
            batch_size=3,
            decoding=Decoding(max_decode_length=4),
            mesh=self.mesh,
        )
        inputs = [row[row > 0] for row in rows(102)["encoder_input_tokens"]]
        found = generator.run(self.state.params, inputs)
        return {
            **loss.run(self.state.params),
            "scores": [best.score for best, *_ in found],
            "texts": [best.text for best, *_ in found],
        }


def sums_of(tree):
    """Of every leaf the sum of its squares, and one that depends on the order."""
    weigh = jax.jit(
        lambda tree: [
            jnp.stack([jnp.sum(jnp.square(leaf)), jnp.sum(leaf * _ramp(leaf))])
            for leaf in jax.tree.leaves(tree)
        ]
    )
    return [leaf.tolist() for leaf in jax.device_get(weigh(tree))]


class _Numbers:
    """A vocabulary that writes ids as numbers."""

    def decode(self, ids):
        return " ".join(map(str, ids))


def _learner(model, rngs):
    return Bound(model, Seq2Seq(z_loss=1e-4), rngs=rngs)


def _kept(grads, state, params):
    del state
    return jax.tree.map(jnp.zeros_like, params), grads


def _ramp(leaf):
    """Weights that differ from element to element: rows in another order have another sum."""
    return jnp.linspace(0.5, 1.5, leaf.size).reshape(leaf.shape)


def meshes():
    """{name of a mesh: losses and state} after 20 steps, and {microbatches: gradient}."""
    found, gradients = {}, {}
    sizes = {
        "one": None,
        "data 8": MeshConfig(),
        "fsdp 8": MeshConfig(fsdp=8),
        "tensor 2, fsdp 4": MeshConfig(tensor=2, fsdp=4),
        "data 2, fsdp 2, tensor 2": MeshConfig(fsdp=2, tensor=2),
        "sequence 2": MeshConfig(sequence=2),
    }
    for name, config in sizes.items():
        training = Training(_mesh(config))
        losses = training.run()
        leaves = jax.tree.leaves((training.state.params, training.state.optimizer))
        found[name] = {"losses": losses, "state": [np.asarray(leaf).tolist() for leaf in leaves]}
    for name, config in (("one", None), ("mixed", MeshConfig(fsdp=2, tensor=2))):
        for microbatches in (1, 2, 4) if config is None else (1, 2):
            training = Training(_mesh(config), microbatches=microbatches, keep_gradient=True)
            loss = training.run(1)
            leaves = [np.asarray(x).tolist() for x in jax.tree.leaves(training.state.optimizer)]
            gradients[f"{name} {microbatches}"] = {"losses": loss, "state": leaves}
    return {"meshes": found, "gradients": gradients}


def _mesh(config):
    """A mesh of these sizes; of None, the first device alone."""
    if config is None:
        return make_mesh(MeshConfig(), devices=jax.devices()[:1])
    return make_mesh(config)


def process(job):
    """What one of several processes, or the only one, finds."""
    devices = len(jax.devices())
    if job == "preempted":
        stopping.on_google_cloud = lambda: jax.process_index() == 1
    if job in ("endless", "preempted"):
        return endless()
    found = {}
    for name, dropout, config in (
        ("plain", 0.0, MeshConfig()),
        ("dropout", 0.1, MeshConfig(fsdp=devices)),
    ):
        training = Training(make_mesh(config), dropout=dropout)
        found[name] = {"losses": training.run(), "sums": training.sums()}
    found["evaluation"] = training.evaluate()
    found["cached"] = cached_pairs(make_mesh(MeshConfig()))
    return found


def cached_pairs(mesh):
    """Losses and sums of the parameters of three contrastive steps in two cached parts."""
    learner = Learner.of(*LEARNERS["contrastive"])
    layout = state_shardings(mesh, learner.axes, {})
    update = Update(learner.loss, DESCENT, lambda _: 1.0, joint=learner.joint)
    parts = Parts(count=2, mode="cached")
    step = make_train_step([update], mesh=mesh, layout=layout, seed=0, microbatches=parts)
    state = init_state(learner.init, DESCENT, layout, seed=0)
    part, num_parts = batch_part(mesh)
    batch = pairs(2 * ROWS)
    own = slice(part * 2 * ROWS // num_parts, (part + 1) * 2 * ROWS // num_parts)
    losses = []
    with jax.set_mesh(mesh):
        rows_of_mine = put_batch({name: value[own] for name, value in batch.items()}, mesh)
        for _ in range(3):
            state, metrics = step(state, rows_of_mine)
            losses.append(float(metrics["loss"]))
    return {"losses": losses, "sums": sums_of(state.params)}


def endless():
    """Trains until a signal comes; one line a step.

    Returns:
      The step after which it stopped and by which signal, what this process received, after which
      steps a notice asked it to save, and which host was the slowest.
    """
    training = Training(make_mesh(MeshConfig()))
    slow, saved = int(os.environ.get("SLOW", "1")), []
    with StopSignals() as stop, stopping.watched(stop), hosts.ending_together():
        for step in itertools.count(1):
            metrics = training.advance(step)
            float(metrics["loss"])
            print(step, "after a save" if saved else "", flush=True)
            time.sleep(0.12 if jax.process_index() == slow else 0.02)
            signum = stop.after_step(training.mesh, metrics)
            saved += [step] * stop.save_asked()
            if signum is not None:
                agreed = {"step": step, "signal": signum, "saved": saved, **stop.slowest_host()}
                return {"agreed": agreed, "received": stop.received}


def main(arguments):
    """Runs the program."""
    if arguments[0] == "meshes":
        found = meshes()
    else:
        port, count, index = map(int, arguments[1:4])
        if count > 1:
            where = {"coordinator": f"127.0.0.1:{port}", "process_id": index}
            heartbeat = int(os.environ.get("HEARTBEAT", Hosts.heartbeat))
            hosts.join(Hosts(num_processes=count, heartbeat=heartbeat, **where))
        found = process(arguments[4])
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
