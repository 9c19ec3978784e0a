"""BGE-M3's losses: the goldens, a literal reference, blocks, teachers, steps and parts."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from t5x_lite.config.file import from_json, to_json
from t5x_lite.core.errors import InputError
from t5x_lite.core.sharding import MeshConfig, Parts, make_mesh
from t5x_lite.models.vector_heads import Dense, Lexical, MultiVector
from t5x_lite.objectives.learner import Learner
from t5x_lite.objectives.m3 import M3, m3, m3_v1
from t5x_lite.optim.partial import Update
from t5x_lite.train.step import TrainState, make_train_step, state_shardings
from tests.objectives.encoder_rows import MODEL, VOCAB, groups, random

CLS, SEP = 1, 2
SPECIALS = (0, 1, 2, 3)
NAMES = ("dense", "lexical", "multi_vector")


def rows_of(dense, lexical, multi):
    """Rows whose scores are these [B, N], and their batch; passages of one row each have one."""
    num, count = np.shape(dense)
    each = count // num
    words = list(range(20, 20 + count))
    batch = groups(
        [[10 + i, *words] for i in range(num)],
        [[[5, words[each * i + j]] for j in range(each)] for i in range(num)],
        lengths=(1 + count, 2),
    )
    batch["query_segment_ids"] = batch["query_segment_ids"].at[:, 2:].set(0)

    def eye(*shape):
        return jnp.eye(count).reshape(num, each, *shape)

    none = jnp.zeros((num, 1))
    padded = jnp.zeros((num, count, count)).at[:, 0].set(jnp.asarray(multi, jnp.float32))
    return batch, {
        "queries": jnp.asarray(dense, jnp.float32),
        "passages": eye(count),
        "query_terms": jnp.concatenate([none, jnp.asarray(lexical, jnp.float32)], axis=1),
        "passage_terms": jnp.tile(jnp.array([0.0, 1.0]), (num, each, 1)),
        "query_vectors": padded,
        "passage_vectors": eye(1, count),
    }


def joint(objective, rows, batch, *, step):
    """The second stage as one program."""
    return jax.jit(objective.joint)(rows, batch, step=step)


GOLDEN = ([[0.9, 0.1], [0.2, 0.8]], [[0.5, 0], [0.1, 0.3]], [[0.7, 0.2], [0.3, 0.6]])


@pytest.mark.parametrize(
    ("preset", "plain", "taught", "final"),
    [(m3, 0.183866, 0.276107, 0.229987), (m3_v1, 1.012105, 0.389902, 1.402007)],
)
@pytest.mark.slow
def test_the_goldens(preset, plain, taught, final):
    batch, rows = rows_of(*GOLDEN)
    objective = preset(temperature=0.5, distill_from=3)
    before, after = (joint(objective, rows, batch, step=jnp.int32(step)) for step in (2, 3))
    assert float(before.value()) == pytest.approx(plain, abs=2e-6)
    assert float(after.value()) == pytest.approx(final, abs=2e-6)
    own = sum(
        share * float(after.metrics[f"self_{name}_loss"][0]) / 2
        for name, share in zip(NAMES, objective.loss_weights, strict=True)
    )
    assert own / 3 == pytest.approx(taught, abs=2e-6)
    # Evaluation knows no step, and its loss is the same through a run.
    assert float(joint(objective, rows, batch, step=None).value()) == pytest.approx(plain, abs=2e-6)
    never = joint(preset(temperature=0.5, distill_from=None), rows, batch, step=jnp.int32(9))
    assert float(never.value()) == pytest.approx(plain, abs=2e-6)
    assert not any(name.startswith("self_") for name in never.terms)


def literal(scores, objective, *, on, teacher=None, block=None):
    """The loss of scores [B, N] by name, by the formulas; all texts differ."""
    num, count = scores["dense"].shape
    each, block = count // num, block or num
    tau, weights, shares = objective.temperature, objective.weights, objective.loss_weights
    total = sum(w * scores[name] for name, w in zip(NAMES, weights, strict=True))
    every, plain, taught = {**scores, "all": total}, {}, {}

    def log_softmax(x):
        return x - np.log(np.sum(np.exp(x)))

    for name, score in every.items():
        plain[name], taught[name] = 0.0, 0.0
        for i in range(num):
            first = i // block * block * each
            here = np.arange(first, first + block * each)
            among = np.arange(count) if name == "dense" and teacher is None else here
            own, s = i * each + np.arange(each), score[i] / tau
            if teacher is None:
                plain[name] -= log_softmax(s[among])[list(among).index(i * each)] / num
            else:
                order, t = own[np.argsort(-teacher[i])], np.exp(log_softmax(teacher[i]))
                rest = [j for j in here if j not in own]
                for r, target in enumerate(order):
                    among = [target, *order[r + 1 :], *rest]
                    plain[name] -= t[target - i * each] * log_softmax(s[among])[0] / num
            t = np.exp(log_softmax(total[i, here] / tau))
            taught[name] -= np.sum(t * log_softmax(s[here])) / num
    first = sum(x * plain[name] for name, x in zip(NAMES, shares, strict=True))
    second = sum(x * taught[name] for name, x in zip(NAMES, shares, strict=True)) / 3
    if objective.combination == "sum":
        return first + (second if on else 0)
    first = (first + plain["all"]) / 4
    return (first + second) / 2 if on else first


@pytest.mark.parametrize(
    ("preset", "options", "block"),
    [
        (m3, {}, None),
        (m3_v1, {"score_block": 2}, 2),
        (m3, {"distillation": "m3_kd", "score_block": 2}, 2),
    ],
)
@pytest.mark.slow
def test_a_literal_implementation(preset, options, block):
    rng = np.random.default_rng(0)
    scores = {name: rng.normal(size=(4, 8)) for name in NAMES}
    scores["lexical"] = np.abs(scores["lexical"])
    batch, rows = rows_of(*scores.values())
    objective = preset(temperature=0.5, distill_from=1, **options)
    teacher = rng.normal(size=(4, 2)) if "distillation" in options else None
    if teacher is not None:
        batch["teacher_scores"] = jnp.asarray(teacher, jnp.float32)
    for step in (0, 1):
        loss = joint(objective, rows, batch, step=jnp.int32(step))
        expected = literal(scores, objective, on=step, teacher=teacher, block=block)
        assert float(loss.value()) == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_negatives_of_the_group_alone():
    """More rows than passages of a row: FlagEmbedding loses the joint loss there."""
    rng = np.random.default_rng(1)
    scores = {name: rng.normal(size=(5, 10)) for name in NAMES}
    scores["lexical"] = np.abs(scores["lexical"])
    batch, rows = rows_of(*scores.values())
    objective = m3(temperature=0.5, candidates="group", distill_from=0)
    loss = joint(objective, rows, batch, step=jnp.int32(0))
    alone = [
        literal(
            {name: x[i : i + 1, 2 * i : 2 * i + 2] for name, x in scores.items()},
            objective,
            on=True,
        )
        for i in range(5)
    ]
    assert float(loss.value()) == pytest.approx(np.mean(alone), rel=1e-5)


@pytest.mark.exhaustive
def test_a_row_of_padding_has_no_part_in_the_loss():
    rng = np.random.default_rng(2)
    scores = [np.abs(rng.normal(size=(3, 3))) for _ in NAMES]
    batch, rows = rows_of(*scores)
    padded = {name: jnp.concatenate([x, jnp.zeros_like(x[:1])]) for name, x in batch.items()}
    more = {name: jnp.concatenate([x, jnp.zeros_like(x[:1])]) for name, x in rows.items()}
    objective = m3(temperature=0.5)
    for step in (jnp.int32(0), None):
        whole = joint(objective, rows, batch, step=step)
        found = joint(objective, more, padded, step=step)
        assert float(found.value()) == pytest.approx(float(whole.value()), rel=1e-6)
        slope = jax.jit(jax.grad(lambda x, s=step: objective.joint(x, padded, step=s).value()))(
            more
        )
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slope))


def test_the_teacher_has_no_gradient():
    batch, rows = rows_of(*GOLDEN)
    objective = m3(temperature=0.5, loss_weights=(0.0, 1.0, 0.0))
    loss = functools.partial(objective.joint, batch=batch, step=jnp.int32(0))

    def dense_alone(queries):
        terms = loss({**rows, "queries": queries}).terms
        return sum(term.total for name, term in terms.items() if name == "self_lexical")

    assert not np.any(jax.jit(jax.grad(dense_alone))(rows["queries"]))


WORDS = groups(
    [[CLS, 10, 11, 10, SEP], [CLS, 12, SEP], [CLS, SEP], [CLS, 3, 13, 13, SEP]],
    [
        [[CLS, 20, 10, 20, 11, SEP], [CLS, 22, SEP]],
        [[CLS, 12, 12, 24, 12, SEP], [CLS, 26, SEP]],
        [[CLS, 27, SEP], []],
        [[CLS, 13, 3, SEP], [CLS, 13, 13, 13, 30, SEP]],
    ],
    lengths=(7, 11),
)
KEPT = optax.GradientTransformation(
    lambda params: jax.tree.map(jnp.zeros_like, params),
    lambda grads, state, params: (jax.tree.map(jnp.zeros_like, grads), grads),
)


@functools.cache
def after_a_step(parts):
    """The gradient of one step, its metrics, and the text of its program."""
    objective = m3(temperature=0.5, distill_from=1, score_block=2, specials=SPECIALS)
    learner = Learner.of(MODEL.replace(dropout_rate=0.0, attention_dropout_rate=0.0), objective)
    params = random(learner.shapes)
    update = Update(learner.loss, KEPT, lambda _: 1.0, joint=learner.joint)
    mesh = make_mesh(MeshConfig(), devices=jax.devices()[:1])
    layout = state_shardings(mesh, learner.axes, learner.axes)
    made = make_train_step([update], mesh=mesh, layout=layout, seed=0, microbatches=parts)
    state = TrainState(jnp.int32(1), params, KEPT.init(params))
    text = made.lower(state, WORDS).as_text()
    after, metrics = made(jax.tree.map(jnp.array, state), WORDS)
    return after.optimizer, {name: float(x) for name, x in metrics.items()}, text


@pytest.mark.slow
def test_parts_have_the_loss_and_the_gradient_of_the_whole_batch():
    gradient, metrics, _ = after_a_step(Parts(count=1))
    other, ours, _ = after_a_step(Parts(count=2))
    assert ours == pytest.approx(metrics, rel=1e-5, abs=1e-6)
    pairs = zip(jax.tree.leaves(other), jax.tree.leaves(gradient), strict=True)
    largest = max(np.max(np.abs(leaf)) for leaf in jax.tree.leaves(gradient))
    assert max(np.max(np.abs(a - b)) for a, b in pairs) / largest < 2e-6
    assert {"dense_loss", "self_dense_loss", "all_accuracy", "sparse_active"} < set(ours)
    for name in ("lexical", "multi_vector"):
        assert np.any(gradient["heads"][name]["out"]["kernel"])


@pytest.mark.slow
def test_no_array_has_the_vocabulary_or_all_pairs_of_tokens_vectors():
    text = after_a_step(Parts(count=1))[2]
    written = set(re.findall(r"tensor<((?:\d+x)+)[a-z]", text))
    shapes = {tuple(int(n) for n in shape.split("x") if n) for shape in written}
    size, queries, passages = MODEL.d_model, WORDS["query_tokens"], WORDS["passage_tokens"]
    assert {shape for shape in shapes if VOCAB in shape} == {(VOCAB, size)}
    asked, shown = ({x.shape[-1] - 1, x.shape[-1]} for x in (queries, passages))
    assert [shape for shape in shapes if asked & set(shape) and shown & set(shape)]
    assert not [s for s in shapes if asked & set(s) and shown & set(s) and size in s]


def test_heads_and_what_is_known_of_them():
    kept = {
        "dense": Dense(pooling="mean", max_length=7),
        "lexical": Lexical(specials=(0, 5)),
        "multi_vector": MultiVector(size=3, normalize=False),
    }
    assert m3().heads({}) == (Dense(pooling="cls"), Lexical(), MultiVector())
    assert M3().heads(kept) == tuple(kept.values())
    assert M3(normalize=False, vector_size=4, specials=(9,)).heads(kept)[1:] == (
        Lexical(specials=(9,)),
        MultiVector(size=4, normalize=False),
    )
    resolved = M3().resolved(kept)
    assert (resolved.pooling, resolved.vector_size, resolved.no_terms()) == ("mean", 3, (0, 5))
    assert m3().no_terms() == (0, 1, 2, 3)
    assert from_json(to_json(m3_v1(score_block=8)), source="here") == m3_v1(score_block=8)


@pytest.mark.slow
def test_what_cannot_be():
    for fields, message in (
        ({"symmetric": True}, "supports neither two towers nor a symmetric loss"),
        ({"towers": "two"}, "supports neither two towers nor a symmetric loss"),
        ({"weights": (1.0, -1.0, 1.0)}, "weights must be at least 0"),
        ({"score_block": 0}, "score_block must be at least 1: got 0"),
        ({"distill_from": -1}, "distill_from must be at least 0"),
        ({"dense_scale": 0.0}, "dense_scale must be above 0"),
    ):
        with pytest.raises(InputError, match=message):
            M3(**fields)
    batch, rows = rows_of(*GOLDEN)
    with pytest.raises(InputError, match=r"--data\.layout\.teacher True"):
        m3(distillation="kl").joint(rows, batch, step=None)
    with pytest.raises(InputError, match="blocks of 2 rows do not divide a batch of 3"):
        m3(score_block=2).block_rows(3)
    assert m3(score_block=2, candidates="block:8").block_rows(16) == 2
