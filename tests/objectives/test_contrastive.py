"""InfoNCE: literals, a NumPy reference, and what is no negative."""

import dataclasses
import functools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from t5x_lite import layouts
from t5x_lite.config import Checkpoints, Evaluation, Experiment
from t5x_lite.config.file import from_json, to_json
from t5x_lite.core.errors import InputError
from t5x_lite.core.sharding import MeshConfig, make_mesh
from t5x_lite.data.config import Data
from t5x_lite.models.encoder import BertConfig
from t5x_lite.models.lm import LMConfig
from t5x_lite.nn.slots import bind, shapes
from t5x_lite.objectives.base import Objective
from t5x_lite.objectives.contrastive import Contrastive, Matryoshka, bge, dpr, retromae
from t5x_lite.objectives.learner import Bound, Learner
from t5x_lite.optim.config import AdamW, Constant
from t5x_lite.optim.partial import Update
from t5x_lite.train.step import TrainState, make_train_step, state_shardings
from tests.objectives.encoder_rows import CLS, MODEL, SEP, groups, learner, loss_of, random

BATCH = groups(
    [[CLS, 10, SEP], [CLS, 11, 12, SEP], [CLS, 13, SEP]],
    [
        [[CLS, 20, 21, SEP], [CLS, 22, SEP]],
        [[CLS, 23, 24, 25, SEP], [CLS, 26, SEP]],
        [[CLS, 27, SEP], []],
    ],
)


def loss_of_vectors(queries, passages, batch, **fields):
    rows = {"queries": jnp.asarray(queries), "passages": jnp.asarray(passages)}
    return Contrastive(**fields).joint(rows, batch, step=None)


@pytest.mark.slow
def test_two_queries_by_hand():
    queries = [[1.0, 0.0], [0.0, 1.0]]
    passages = [[[1.0, 0.0]], [[1.0, 1.0]]]
    batch = groups([[CLS, 10], [CLS, 11]], [[[CLS, 20]], [[CLS, 21]]])
    loss = loss_of_vectors(queries, passages, batch, temperature=1.0)
    total, weight, scale = loss.terms["contrastive"]
    expected = math.log(2) + math.log(1 + math.exp(-1))
    assert (float(total), float(weight), scale) == (pytest.approx(expected, abs=1e-6), 2.0, 1.0)
    # A tie of two is half right, as it is for tokens.
    assert tuple(map(float, loss.metrics["accuracy"])) == (1.5, 2.0)
    other = loss_of_vectors(queries, passages, batch, temperature=0.5)
    expected = math.log(2) + math.log(1 + math.exp(-2))
    assert float(other.terms["contrastive"].total) == pytest.approx(expected, abs=1e-6)


def test_a_matryoshka_also_has_the_loss_of_its_first_numbers():
    """Whole: scores 0 and 1 and 1 and 1; the first number alone: 1, 1 and 0, 0, or at length 1."""
    queries = [[1.0, 0.0], [0.0, 1.0]]
    passages = [[[1.0, 0.0]], [[3.0, 1.0]]]
    batch = groups([[CLS, 10], [CLS, 11]], [[[CLS, 20]], [[CLS, 21]]])
    rows = {"queries": jnp.asarray(queries), "passages": jnp.asarray(passages)}
    log = math.log

    def terms(normalize):
        objective = Matryoshka(dimensions=(1,), temperature=1.0, normalize=normalize)
        loss = objective.joint(rows, batch, step=None)
        assert {"accuracy", "accuracy_1"} < set(loss.metrics)
        return {name: float(term.total) for name, term in loss.terms.items()}

    whole = log(1 + math.exp(2)) + log(1 + math.exp(-1))  # 1 against 3, 1 against 0
    assert terms(False) == {
        "contrastive": pytest.approx(whole, abs=1e-6),
        "contrastive_1": pytest.approx(log(1 + math.exp(2)) + log(2), abs=1e-6),
    }
    assert terms(True)["contrastive_1"] == pytest.approx(log(2) + log(2), abs=1e-6)
    with pytest.raises(InputError, match="dimensions must be below 2, the size of a vector: got 2"):
        Matryoshka(dimensions=(2,)).joint(rows, batch, step=None)


@pytest.mark.parametrize(("pooling", "normalize"), [("cls", True), ("mean", False)])
@pytest.mark.slow
def test_the_loss_is_that_of_numpy(pooling, normalize):
    objective = Contrastive(temperature=0.5, pooling=pooling, normalize=normalize)
    made = Learner.of(MODEL, objective)
    params = random(made.shapes)
    loss = jax.jit(made.whole_loss)(params, BATCH)
    model = made.bind_model(params)

    def vectors(name):
        tokens = np.asarray(BATCH[f"{name}_tokens"]).reshape(-1, BATCH[f"{name}_tokens"].shape[-1])
        hidden = np.asarray(model(jnp.asarray(tokens)), np.float64)
        real = (tokens > 0).astype(np.float64)[..., None]
        means = np.sum(hidden * real, axis=1) / np.maximum(np.sum(real, axis=1), 1)
        found = hidden[:, 0] if pooling == "cls" else means
        return found / np.linalg.norm(found, axis=-1, keepdims=True) if normalize else found

    scores = vectors("query") @ vectors("passage").T / 0.5
    scores = scores[:, :5]  # the sixth passage is missing
    losses = np.log(np.sum(np.exp(scores), axis=1)) - scores[[0, 1, 2], [0, 2, 4]]
    np.testing.assert_allclose(loss.terms["contrastive"].total, np.sum(losses), rtol=1e-4)
    right = np.sum(np.argmax(scores, axis=1) == [0, 2, 4])
    assert tuple(map(float, loss.metrics["accuracy"])) == (right, 3.0)


@pytest.mark.exhaustive
def test_a_row_of_padding_has_no_part_in_the_loss():
    pad = jax.tree.map(lambda x: jnp.concatenate([x, jnp.zeros_like(x[:1])]), BATCH)
    queries = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    passages = np.random.default_rng(1).normal(size=(4, 2, 3)).astype(np.float32)
    whole = loss_of_vectors(queries, passages, pad)
    part = loss_of_vectors(queries[:3], passages[:3], BATCH)
    assert float(whole.value()) == pytest.approx(float(part.value()), rel=1e-6)
    assert float(whole.terms["contrastive"].weight) == 3.0


def test_the_diagnostics_by_hand():
    queries = [[2.0, 0.0], [0.0, 3.0], [0.0, 0.0]]
    passages = [[[1.0, 0.0], [1.0, 1.0]], [[1.0, 0.0], [0.0, 0.5]], [[0.0, 0.0], [0.0, 0.0]]]
    one, two = [CLS, 10], [CLS, 11]
    batch = groups([one, two, []], [[[20], [21]], [[22], [23]], [[], []]])
    found = loss_of_vectors(queries, passages, batch, temperature=1.0).metrics
    found = {name: tuple(map(float, value)) for name, value in found.items()}
    # The first query: 2 for its own, and at most 2; the second: 0, and at most 3.
    # The first shares its best score with two others, and has a third.
    assert found["accuracy"] == (pytest.approx(1 / 3), 2.0)
    assert found["own_score"] == (2.0, 2.0)
    assert found["hardest_negative_score"] == (5.0, 2.0)
    # Of length 1: |(1, 0) - (1, 0)|^2 and |(0, 1) - (1, 0)|^2.
    assert found["alignment"] == pytest.approx((2.0, 2.0))
    # Queries are at a distance of sqrt 2, first passages at 0: (log e^-4 + log 1) / 2.
    assert found["uniformity"][0] / found["uniformity"][1] == pytest.approx(-2.0)


def test_candidates_of_the_row_and_of_blocks():
    rng = np.random.default_rng(0)
    queries, passages = rng.normal(size=(4, 3)), rng.normal(size=(4, 2, 3))
    texts = [[CLS, 10 + i] for i in range(4)]
    batch = groups(texts, [[[CLS, 20 + 2 * i], [CLS, 21 + 2 * i]] for i in range(4)])
    scores = queries @ passages.reshape(8, 3).T

    def info_nce(blocks):
        rows = [scores[i, block] - scores[i, 2 * i] for i, block in enumerate(blocks)]
        return sum(np.log(np.sum(np.exp(row))) for row in rows)

    for kind, blocks in {
        "batch": [slice(0, 8)] * 4,
        "group": [slice(2 * i, 2 * i + 2) for i in range(4)],
        "block:2": [slice(0, 4)] * 2 + [slice(4, 8)] * 2,
        "block:3": [slice(0, 6)] * 3 + [slice(6, 8)],
    }.items():
        vectors = (queries.astype(np.float32), passages.astype(np.float32))
        loss = loss_of_vectors(*vectors, batch, temperature=1.0, candidates=kind)
        assert float(loss.terms["contrastive"].total) == pytest.approx(info_nce(blocks), rel=1e-5)


@pytest.mark.slow
def test_a_symmetric_loss_is_the_mean_of_both_directions():
    rng = np.random.default_rng(0)
    queries, passages = (rng.normal(size=(3, 4)).astype(np.float32) for _ in range(2))
    texts = [[CLS, 10 + i] for i in range(3)]
    batch = groups(texts, [[[CLS, 20 + i]] for i in range(3)])
    options = {"temperature": 0.5, "symmetric": True}
    loss = loss_of_vectors(queries, passages[:, None], batch, **options)
    scores = queries @ passages.T / 0.5
    there = np.sum(np.log(np.sum(np.exp(scores), axis=1)) - np.diag(scores))
    back = np.sum(np.log(np.sum(np.exp(scores), axis=0)) - np.diag(scores))
    assert float(loss.terms["contrastive"].total) == pytest.approx((there + back) / 2, rel=1e-5)
    turned = loss_of_vectors(passages, queries[:, None], batch, **options)
    assert float(turned.value()) == pytest.approx(float(loss.value()), rel=1e-5)


def test_presets():
    assert dpr() == Contrastive(temperature=1.0, normalize=False, pooling="cls", towers="two")
    assert retromae() == Contrastive(temperature=1.0, normalize=False, pooling="cls")
    assert bge(candidates="block:8") == Contrastive(
        temperature=0.02, normalize=True, pooling="cls", candidates="block:8"
    )


@pytest.mark.slow
def test_one_text_has_two_views_under_dropout():
    graphdef, params, _ = learner(Contrastive(), MODEL.replace(dropout_rate=0.2))
    texts = [[CLS, 10, 11, SEP], [CLS, 12, 13, SEP]]
    batch = groups(texts, [[text] for text in texts])
    module = bind(graphdef, params)
    plain = module.objective.encode(module.model, module.heads, batch)
    np.testing.assert_allclose(plain["queries"], plain["passages"][:, 0], rtol=1e-5, atol=1e-6)
    two = module.objective.encode(module.model, module.heads, batch, key=jax.random.key(0))
    assert np.all(np.max(np.abs(two["queries"] - two["passages"][:, 0]), axis=1) > 1e-3)
    np.testing.assert_allclose(np.linalg.norm(two["queries"], axis=1), 1.0, rtol=1e-5)


def experiment(**changes):
    return Experiment(
        **{
            "model": MODEL,
            "objective": Contrastive(),
            "data": Data(task="x:y", vocabulary="v", layout=layouts.Groups(), pack=False),
            "optimizer": AdamW(schedule=Constant(value=0.01)),
            "steps": 4,
            **changes,
        }
    )


FOUR = groups(
    [[CLS, 10, SEP], [CLS, 11, 12, SEP], [CLS, 13, SEP], [CLS, 14, 15, SEP]],
    [
        [[CLS, 20, 21, SEP], [CLS, 22, SEP]],
        [[CLS, 23, 24, 25, SEP], [CLS, 26, SEP]],
        [[CLS, 27, SEP], []],
        [[CLS, 28, SEP], [CLS, 29, 30, SEP]],
    ],
)


KEPT = optax.GradientTransformation(
    lambda params: jax.tree.map(jnp.zeros_like, params),
    lambda grads, state, params: (jax.tree.map(jnp.zeros_like, grads), grads),
)
"""An optimizer that keeps the gradient in its state and changes nothing."""


@functools.cache
def after_a_step(microbatches, *, dropout):
    """A learner, its parameters, the gradient of one step, and its metrics."""
    model = MODEL.replace(dropout_rate=dropout, attention_dropout_rate=dropout)
    made = Learner.of(model, Contrastive(temperature=0.5, pooling="mean"))
    params = random(made.shapes)
    update = Update(made.loss, KEPT, lambda _: 1.0, joint=made.joint)
    mesh = make_mesh(MeshConfig())
    layout = state_shardings(mesh, made.axes, made.axes)
    step = make_train_step([update], mesh=mesh, layout=layout, seed=0, microbatches=microbatches)
    own = jax.tree.map(jnp.array, params)
    state, metrics = step(TrainState(jnp.int32(0), own, KEPT.init(own)), FOUR)
    return made, params, state.optimizer, {name: float(value) for name, value in metrics.items()}


def largest_difference(found, expected):
    """Of two gradients, beside the largest of all."""
    scale = max(np.max(np.abs(leaf)) for leaf in jax.tree.leaves(expected))
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    return max(np.max(np.abs(ours - theirs)) for ours, theirs in pairs) / scale


@pytest.mark.parametrize("microbatches", [2, 4])
@pytest.mark.gate("2")
@pytest.mark.slow
def test_microbatches_have_the_loss_and_the_gradient_of_the_whole_batch(microbatches):
    _, _, expected, metrics = after_a_step(1, dropout=0.0)
    _, _, gradient, ours = after_a_step(microbatches, dropout=0.0)
    assert ours == pytest.approx(metrics, rel=1e-6, abs=1e-6)
    assert set(ours) == {
        *("loss", "learning_rate", "gradient_norm", "accuracy", "own_score"),
        *("hardest_negative_score", "alignment", "uniformity"),
    }
    assert largest_difference(gradient, expected) < 1e-6


@pytest.mark.parametrize("wrong", [False, True])
@pytest.mark.gate("False")
@pytest.mark.slow
def test_a_microbatch_has_the_same_dropout_in_both_passes(wrong):
    """Beside the gradient of the same parts under the same keys, without a cache; or other keys."""
    made, params, gradient, metrics = after_a_step(2, dropout=0.1)
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), 1), 0)
    keys = [jax.random.fold_in(key, (i + 1) % 2 if wrong else i) for i in range(2)]

    def loss(params):
        parts = [{name: x[i::2] for name, x in FOUR.items()} for i in range(2)]
        rows = [made.loss(params, *given).rows for given in zip(parts, keys, strict=True)]
        together = jax.tree.map(
            lambda a, b: jnp.stack([a, b], axis=1).reshape(-1, *a.shape[1:]), *rows
        )
        return made.joint(together, FOUR).value()

    value, expected = jax.jit(jax.value_and_grad(loss))(params)
    close = largest_difference(gradient, expected) < 1e-6
    assert close != wrong
    assert (abs(float(value) - metrics["loss"]) < 1e-5) != wrong


def test_rows_need_a_second_stage():
    made = Learner.of(MODEL, Contrastive())
    update = Update(made.loss, KEPT, lambda _: 1.0)
    loss = jax.eval_shape(made.loss, made.shapes, FOUR)
    with pytest.raises(
        ValueError,
        match=r"terms that compare the rows of a batch, \['passages', 'queries'\], but the",
    ):
        update.complete(loss, FOUR, 0)
    with pytest.raises(TypeError, match="Objective returns rows, but has no method joint"):
        Objective().joint({}, {}, step=None)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": 0.0}, r"objective\.temperature must be above 0: got 0\.0"),
        ({"temperature": -1.0}, "temperature must be above 0"),
        ({"candidates": "all"}, "candidates must be batch, group or block:N.*got 'all'"),
        ({"candidates": "block:0"}, "candidates must be batch"),
    ],
)
def test_refuses_nonsense(fields, message):
    with pytest.raises(InputError, match=message):
        Contrastive(**fields)


def test_refuses_parts_that_do_not_go_together():
    decoder = LMConfig(vocab_size=8, d_model=4, d_kv=2, d_ff=8, num_heads=2, num_layers=1)
    with pytest.raises(InputError, match="Contrastive trains an encoder, but the model is a LM"):
        shapes(lambda rngs: Bound(decoder, Contrastive(), rngs=rngs))
    graphdef, params, _ = learner(Contrastive())
    with pytest.raises(
        InputError, match=r"the batch has no passage_.*: data\.layout must be groups"
    ):
        loss_of(graphdef, params, {"query_tokens": jnp.ones((1, 4), jnp.int32)})
    with pytest.raises(InputError, match=r"needs data\.layout groups, got encoder"):
        experiment(data=Data(task="x:y", vocabulary="v", layout=layouts.Encoder()))


def test_configs_are_saved():
    objective = Contrastive(temperature=0.1, pooling="mean")
    assert from_json(to_json(objective), source="here") == objective


@pytest.mark.slow
def test_trains_on_pairs_and_goes_on_exactly(
    tiny_vocabulary, english_lines, compile_once, tmp_path
):
    """Through `t5x-lite train`, from {query, pos, neg}; stopped and resumed it is the same run."""
    from t5x_lite.train.training import train

    def pairs(lines):
        return "\n".join(
            json.dumps({"query": line[:30], "pos": [line[30:90]], "neg": [other[:40]]})
            for line, other in zip(lines, reversed(lines), strict=True)
        )

    (tmp_path / "train.jsonl").write_text(pairs(english_lines[:40]))
    (tmp_path / "validation.jsonl").write_text(pairs(english_lines[40:50]))
    whole = experiment(
        model=BertConfig(
            vocab_size=400,
            d_model=16,
            d_ff=32,
            num_heads=2,
            num_layers=1,
            max_positions=32,
            unroll=True,
        ),
        objective=Contrastive(temperature=0.2, pooling="mean"),
        data=Data(
            task="tasks.pairs:jsonl",
            vocabulary=str(tiny_vocabulary),
            directory=str(tmp_path),
            layout=layouts.Groups(negatives=1),
            pack=False,
            batch_size=8,
            inputs_length=16,
            targets_length=16,
            shuffle_buffer=20,
        ),
        optimizer=AdamW(schedule=Constant(value=0.01)),
        microbatches=2,
        steps=12,
        log_period=1,
        checkpoints=Checkpoints(period=6),
        evaluation=Evaluation(period=12, task_metrics=False),
        workdir=str(tmp_path / "whole"),
    )
    train(whole)
    parted = dataclasses.replace(whole, steps=6, workdir=str(tmp_path / "parted"))
    train(parted)
    train(dataclasses.replace(parted, steps=12))

    def logged(name):
        text = (tmp_path / name / "metrics.jsonl").read_text()
        lines = [json.loads(line) for line in text.splitlines()]
        return {line["step"]: line["loss"] for line in lines if "loss" in line}, lines

    losses, lines = logged("whole")
    assert losses == logged("parted")[0]
    assert len(losses) == 12
    assert losses[12] < losses[1]
    assert all(0 <= line["accuracy"] <= 1 for line in lines if "accuracy" in line)
    measured = [line for line in lines if "validation/accuracy" in line]
    assert {"validation/loss", "validation/accuracy"} <= set(measured[-1])
    assert any(line.get("tokens_per_second", 0) > 0 for line in lines)
