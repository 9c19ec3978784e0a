"""Gradients of encoders' objectives on one device and on meshes of eight; prints JSON.

Run by test_encoder_meshes.py in a process with eight CPU devices; the arguments are a JSON list of
names of `LEARNERS` and `IN_PARTS`, or "all", and meshes.
"""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

from t5x_lite.adapters.bottleneck import seq_bn
from t5x_lite.adapters.bottleneck_variants import T5Adapter, compacter_plus_plus
from t5x_lite.adapters.grammar import parse_trees
from t5x_lite.adapters.lora import Ia3, Lora
from t5x_lite.adapters.masks import Supermask
from t5x_lite.adapters.prefix import Prefix, Prompt
from t5x_lite.adapters.sparse import BitFit, said
from t5x_lite.core.sharding import (
    MeshConfig,
    Parts,
    check_divisible,
    make_mesh,
    put_batch,
    shardings,
)
from t5x_lite.core.trees import flatten, overlaid, unflatten
from t5x_lite.models.deberta import DebertaConfig
from t5x_lite.models.encoder import BertConfig
from t5x_lite.models.t5 import T5Config
from t5x_lite.objectives.contrastive import Contrastive
from t5x_lite.objectives.electra import Electra
from t5x_lite.objectives.learner import Learner
from t5x_lite.objectives.likelihood import Seq2Seq
from t5x_lite.objectives.m3 import m3
from t5x_lite.objectives.masked_lm import MaskedLM
from t5x_lite.objectives.retromae import RetroMAE
from t5x_lite.optim.partial import Update
from t5x_lite.train.step import TrainState, make_train_step, state_shardings

SIZES = {
    "vocab_size": 40,
    "d_model": 16,
    "d_ff": 24,
    "num_heads": 4,
    "num_layers": 2,
    "max_positions": 12,
    "embedding_size": 8,
    "dropout_rate": 0.0,
    "attention_dropout_rate": 0.0,
}
BERT = BertConfig(**SIZES, token_types=2)
T5 = T5Config(
    **{name: SIZES[name] for name in ("vocab_size", "d_model", "d_ff", "num_heads")},
    d_kv=4,
    num_encoder_layers=2,
    num_decoder_layers=2,
    dropout_rate=0.0,
)
DORA = Lora(rank=2, dora=True, sites=(".*attention/query",))
LEARNERS = {
    "bert": (BERT, MaskedLM(mask_id=3)),
    "retromae": (BERT.replace(embedding_size=None), RetroMAE(mask_id=3)),
    "electra": (BERT, Electra(mask_id=3, generator=BERT.replace(d_model=8, num_heads=2))),
    "deberta": (DebertaConfig(**SIZES, position_buckets=4), MaskedLM(mask_id=3)),
    "adapters": (
        BERT,
        MaskedLM(mask_id=3),
        (Lora(rank=2, sites=("attention", "mlp")), seq_bn(reduction=4.0)),
    ),
    "methods": (
        BERT,
        MaskedLM(mask_id=3),
        (DORA, Ia3(sites=("attention/key",)), compacter_plus_plus(reduction=4.0, phm_dim=2)),
    ),
    "methods of t5": (
        T5,
        Seq2Seq(),
        (
            DORA,
            # A bias of keys has no gradient: the softmax does not see it.
            BitFit(sites=(".*attention/(value|out)", "mlp/(in|gate|out)")),
            T5Adapter(width=4, dropout_rate=0.0),
        ),
    ),
    "prefixes of t5": (T5, Seq2Seq(), (Prefix(length=3, hidden=5), Prompt(length=2))),
    "blocks": (
        BERT,
        MaskedLM(mask_id=3),
        (
            *(seq_bn(name=name, reduction=4.0) for name in "ab"),
            *(Lora(name=name, rank=2) for name in "cd"),
        ),
        parse_trees("Fuse(a, b), Route(c, d, by='token')"),
    ),
    "arrays": (
        BERT,
        MaskedLM(mask_id=3),
        (said(name="z", d=200, fold=True), Supermask(name="m", density=0.5)),
    ),
    # Its dropout, too, must not depend on the devices.
    "contrastive": (BERT.replace(dropout_rate=0.1), Contrastive(temperature=0.2, pooling="mean")),
    "m3": (
        BERT.replace(dropout_rate=0.1),
        m3(temperature=0.5, pooling="mean", score_block=4, specials=(0, 1, 2, 3, 4)),
    ),
}
MESHES = {
    "data 8": MeshConfig(),
    "fsdp 8": MeshConfig(fsdp=8),
    "data 2, fsdp 2, tensor 2": MeshConfig(fsdp=2, tensor=2),
}

FEWER = (2, 4)
"""Devices of smaller meshes, on which steps in parts are compared, too."""

DESCENT = optax.GradientTransformation(
    lambda _: {}, lambda grads, state, params: (jax.tree.map(jnp.negative, grads), state)
)
"""Gradient descent at rate 1: the change is the gradient."""


def rows():
    """Eight rows of two packed documents each."""
    every = {
        "encoder_segment_ids": [1, 1, 1, 1, 2, 2, 2, 0],
        "encoder_positions": [0, 1, 2, 3, 0, 1, 2, 0],
        "encoder_word_ids": [0, 1, 2, 0, 0, 3, 4, 0],
    }
    batch = {name: np.tile(np.asarray([row], np.int32), (8, 1)) for name, row in every.items()}
    tokens = np.random.default_rng(0).integers(4, 40, (8, 8)).astype(np.int32)
    return {"encoder_input_tokens": tokens * (batch["encoder_segment_ids"] > 0), **batch}


def rows_and_targets():
    """Eight rows of inputs and targets, which end with padding."""
    rng = np.random.default_rng(2)
    inputs, targets = (rng.integers(4, 40, (8, length)).astype(np.int32) for length in (7, 5))
    inputs[1::2, 4:] = 0
    targets[::2, 3:] = 0
    return {
        "encoder_input_tokens": inputs,
        "decoder_input_tokens": (np.roll(targets, 1, axis=1) * (np.arange(5) > 0)).astype(np.int32),
        "decoder_target_tokens": targets,
        "decoder_loss_weights": (targets > 0).astype(np.int32),
    }


def batch_of(objective):
    """Rows of the kind that an objective reads."""
    if isinstance(objective, Contrastive):
        return pairs()
    return rows_and_targets() if isinstance(objective, Seq2Seq) else rows()


def pairs(num=8):
    """Queries with two passages each; the last one lacks its second passage."""
    rng = np.random.default_rng(1)
    batch = {}
    for name, shape in (("query", (num, 6)), ("passage", (num, 2, 7))):
        real = np.arange(shape[-1]) < rng.integers(3, shape[-1] + 1, shape[:-1])[..., None]
        if name == "passage":
            real[-1, 1] = False
        batch[f"{name}_tokens"] = (rng.integers(4, 40, shape) * real).astype(np.int32)
        batch[f"{name}_segment_ids"] = real.astype(np.int32)
    return batch


def largest_error(model, objective, adapters=(), use=(), *, meshes):
    """{mesh: the leaf with the largest difference of a gradient, and how large it is}.

    Differences are relative to the largest gradient of the leaf, or to a hundredth of the largest
    of all: that of a key's bias, which softmax does not see, is rounding alone.
    """
    learner = Learner.of(model, objective, adapters=adapters, use=use)
    abstract, axes = learner.shapes, learner.axes
    random = np.random.default_rng(0)
    # In the order of the paths that layers had once: the numbers stay what they were.
    leaves = flatten(abstract)
    order = sorted(leaves, key=lambda path: path.replace("mlp/", "").split("/"))
    drawn = {p: random.normal(size=leaves[p].shape, scale=0.5).astype(np.float32) for p in order}
    params = overlaid(abstract, unflatten(drawn))

    batch = batch_of(objective)

    def loss(params, batch):
        return learner.whole_loss(params, batch, jax.random.key(0)).value()

    value, grads = jax.jit(jax.value_and_grad(loss))(params, batch)
    expected = {path: np.asarray(leaf) for path, leaf in flatten(grads).items()}
    least = 0.01 * max(np.max(np.abs(leaf), initial=0.0) for leaf in expected.values())
    found = {}
    for name in meshes:
        config = MESHES[name]
        mesh = make_mesh(config)
        check_divisible(mesh, axes, abstract, num_heads=model.num_heads)
        placed = jax.device_put(params, shardings(mesh, axes))
        with jax.set_mesh(mesh):
            other, grads = jax.jit(jax.value_and_grad(loss))(placed, put_batch(batch, mesh))
        errors = {"loss": abs(float(other) - float(value)) / abs(float(value))}
        for path, leaf in flatten(grads).items():
            wanted = expected[path]
            scale = max(np.max(np.abs(wanted), initial=0.0), least)
            errors[path] = float(np.max(np.abs(np.asarray(leaf) - wanted), initial=0.0) / scale)
        worst = max(errors, key=errors.__getitem__)
        found[name] = (worst, errors[worst])
    return found


def largest_error_in_parts(name, meshes, *, mode):
    """As `largest_error`, of a step of a loss in two stages in two microbatches, beside one device.

    Besides the meshes of eight devices there are two and four that share a batch.
    """
    learner = Learner.of(*LEARNERS[name])
    update = Update(learner.loss, DESCENT, lambda _: 1.0, joint=learner.joint)
    start = jax.tree.map(np.asarray, jax.jit(learner.init)(jax.random.key(0)))
    parts = Parts(count=2, mode=mode)

    def moved(mesh):
        layout = state_shardings(mesh, learner.axes, {})
        step = make_train_step([update], mesh=mesh, layout=layout, seed=0, microbatches=parts)
        params = jax.device_put(start, shardings(mesh, learner.axes))
        state = TrainState(np.int32(0), params, {})
        state, metrics = step(state, put_batch(pairs(16), mesh))
        after = flatten(jax.tree.map(np.asarray, state.params))
        changes = {path: leaf - flatten(start)[path] for path, leaf in after.items()}
        return {**changes, "loss": np.asarray(metrics["loss"])}

    expected = moved(make_mesh(MeshConfig(), devices=jax.devices()[:1]))
    least = 0.01 * max(np.max(np.abs(leaf)) for leaf in expected.values())
    found = {}
    made = {each: make_mesh(MESHES[each]) for each in meshes}
    for num in FEWER:
        made[f"{num} devices"] = make_mesh(MeshConfig(), devices=jax.devices()[:num])
    for each, mesh in made.items():
        with jax.set_mesh(mesh):
            got = moved(mesh)
        errors = {
            path: float(np.max(np.abs(got[path] - leaf)) / max(np.max(np.abs(leaf)), least))
            for path, leaf in expected.items()
        }
        worst = max(errors, key=errors.__getitem__)
        found[each] = (worst, errors[worst])
    return found


IN_PARTS = {
    "contrastive, cached": ("contrastive", "cached"),
    "contrastive, recompute": ("contrastive", "recompute"),
    "m3, cached": ("m3", "cached"),
}


def main(names, meshes):
    """Prints the errors of the learners of these names."""
    found = {}
    for name in names:
        if name in IN_PARTS:
            learner, mode = IN_PARTS[name]
            found[name] = largest_error_in_parts(learner, meshes, mode=mode)
        else:
            found[name] = largest_error(*LEARNERS[name], meshes=meshes)
    print(json.dumps(found))


if __name__ == "__main__":
    names, *meshes = sys.argv[1:]
    main([*LEARNERS, *IN_PARTS] if names == "all" else json.loads(names), meshes)
