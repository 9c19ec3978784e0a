"""Replaced-token detection: both losses, and what the three ways of sharing tables do."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.config.file import from_json, to_json
from t5x_lite.core.errors import InputError
from t5x_lite.core.sharding import MeshConfig, make_mesh
from t5x_lite.core.trees import flatten
from t5x_lite.models.deberta import DebertaConfig
from t5x_lite.objectives import masked_lm
from t5x_lite.objectives.electra import Electra, draw
from t5x_lite.objectives.learner import Learner
from t5x_lite.optim.config import AdamW, Constant
from t5x_lite.optim.partial import joint_optimizer
from t5x_lite.train.step import init_state, make_train_step, state_shardings
from tests.objectives.encoder_rows import MASK, MODEL, VOCAB, random, rows

DISCRIMINATOR = MODEL.replace(embedding_size=8, dropout_rate=0.1)
GENERATOR = DISCRIMINATOR.replace(d_model=8, d_ff=16, num_heads=1)
BATCH = rows()
STEPS = 4


def objective(**changes):
    return Electra(**{"generator": GENERATOR, "mask_id": MASK, "ratio": 0.3, **changes})


def learner_of(config, *, clip_groups=()):
    optimizer = AdamW(schedule=Constant(value=0.01), clip_norm=0.5, clip_groups=clip_groups)
    return Learner.of(DISCRIMINATOR, config, optimizer=optimizer)


def started(made):
    """The step of a learner, and its state at the beginning."""
    mesh, updates = make_mesh(MeshConfig()), made.updates()
    layout = state_shardings(mesh, made.axes, made.optimizer_axes())
    state = init_state(made.init, joint_optimizer(updates), layout, seed=0)
    return make_train_step(updates, mesh=mesh, layout=layout, seed=0), state


@functools.cache
def trained(sharing, *, decoupled):
    """The parameters at the start and after some steps."""
    groups = () if decoupled else ("objective/generator.*",)
    step, state = started(
        learner_of(objective(sharing=sharing, decoupled=decoupled), clip_groups=groups)
    )
    start = jax.tree.map(np.asarray, state.params)
    step = step.lower(state, rows(seed=0)).compile({"xla_cpu_use_fusion_emitters": True})
    for number in range(STEPS):
        state, metrics = step(state, rows(seed=number))
        assert np.isfinite(float(metrics["loss"]))
    return start, jax.tree.map(np.asarray, state.params)


def of_generator(params):
    return {
        path: leaf
        for path, leaf in flatten(params["objective"]).items()
        if path.startswith("generator")
    }


@pytest.mark.slow
def test_decoupled_generators_of_gdes_and_nes_are_equal_bit_for_bit():
    runs = [trained(sharing, decoupled=True) for sharing in ("nes", "gdes")]
    for nes, gdes in zip(*runs, strict=True):
        ours, theirs = of_generator(gdes), of_generator(nes)
        assert ours.keys() == theirs.keys()
        for path, leaf in ours.items():
            np.testing.assert_array_equal(leaf, theirs[path], err_msg=path)
    moved = of_generator(runs[0][1])["generator/embedding/token"]
    assert np.any(moved != of_generator(runs[0][0])["generator/embedding/token"])
    assert np.any(runs[1][1]["model"]["embedding"]["token"])


@pytest.mark.slow
@pytest.mark.exhaustive  # the decoupled ones below are in the gate
def test_joint_generators_of_gdes_and_nes_are_equal_and_that_of_es_is_not():
    runs = {sharing: trained(sharing, decoupled=False) for sharing in ("nes", "gdes", "es")}
    expected = of_generator(runs["nes"][1])
    for path, leaf in of_generator(runs["gdes"][1]).items():
        np.testing.assert_allclose(leaf, expected[path], rtol=0, atol=1e-6, err_msg=path)
    other = of_generator(runs["es"][1])
    start = of_generator(runs["es"][0])
    assert set(expected) - set(other) == {f"generator/embedding/{name}" for name in ES}
    for path in ("generator/layers/mlp/wi/kernel", "generator_head/dense/kernel"):
        np.testing.assert_array_equal(start[path], of_generator(runs["nes"][0])[path])
        assert np.max(np.abs(other[path] - expected[path])) > 1e-3


SHARINGS = ("es", "nes", "gdes")
ES = ("token", "position", "token_type", "norm/bias", "norm/scale")
"""The arrays of an embedding that ELECTRA's towers have in common."""


@pytest.fixture(scope="module")
def made():
    """A learner of each sharing, and parameters away from their initial values."""
    learners = {s: Learner.of(DISCRIMINATOR, objective(sharing=s)) for s in SHARINGS}
    return {sharing: (made, random(made.shapes)) for sharing, made in learners.items()}


def terms_and_gradients(learner, params):
    def total(params, name):
        return learner.loss(params, BATCH, jax.random.key(1)).terms[name].total

    return [jax.grad(total)(params, name) for name in ("generator", "discriminator")]


@pytest.mark.gate("gdes")
@pytest.mark.parametrize("sharing", SHARINGS)
@pytest.mark.slow
def test_which_tables_the_losses_move(made, sharing):
    learner, params = made[sharing]
    of_g, of_d = jax.jit(functools.partial(terms_and_gradients, learner))(params)

    def moved(grads):
        paths = {path for path, leaf in flatten(grads).items() if np.any(np.abs(leaf) > 1e-9)}
        return {path for path in paths if "/embedding/" in path}

    model, generator = (
        {f"{tower}/embedding/{name}" for name in ES} for tower in ("model", "objective/generator")
    )
    assert moved(of_g) == (model if sharing == "es" else generator)
    assert moved(of_d) == model
    # Drawn tokens carry no gradient: L_D moves nothing of the generator.
    assert not any(np.any(leaf) for leaf in of_generator(of_d).values())
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves((of_g, of_d)))


@pytest.mark.parametrize("sharing", SHARINGS)
def test_what_the_towers_read(made, sharing):
    learner, params = made[sharing]
    stored, seen = flatten(params), flatten(learner.read(params))
    model, generator = "model/embedding/", "objective/generator/embedding/"
    shared = {"es": ES, "nes": (), "gdes": ("token", "position")}[sharing]
    for name in ES:
        if sharing == "es":
            assert generator + name not in stored
            np.testing.assert_array_equal(seen[generator + name], stored[model + name])
        elif name in shared:
            both = stored[generator + name] + stored[model + name]
            np.testing.assert_allclose(seen[model + name], both, rtol=1e-6)
        else:
            np.testing.assert_array_equal(seen[model + name], stored[model + name])
    assert set(seen) == set(flatten(learner.seen))


def test_a_head_of_deberta_shares_tables_alone():
    config = objective(head="deberta")
    learner = Learner.of(DISCRIMINATOR, config)
    alone = flatten(learner.seen).keys() - flatten(learner.shapes).keys()
    assert alone == {f"objective/generator/embedding/{name}" for name in ("token", "position")}
    both = Learner.of(DISCRIMINATOR, dataclasses.replace(config, share_embedding_norm=True))
    assert len(flatten(both.seen)) - len(flatten(both.shapes)) == len(ES)


@pytest.mark.parametrize("sharing", ["nes", "gdes"])
@pytest.mark.slow
def test_what_is_read_is_what_is_exported(sharing):
    learner = Learner.of(DISCRIMINATOR, objective(sharing=sharing))
    params = jax.jit(learner.init)(jax.random.key(0))
    exported = learner.read(params)["model"]
    own = params["model"]["embedding"]
    theirs = params["objective"]["generator"]["embedding"]
    for name in ("token", "position"):
        if sharing == "nes":
            assert np.any(own[name])
            np.testing.assert_array_equal(exported["embedding"][name], own[name])
        else:
            assert not np.any(own[name])
            np.testing.assert_array_equal(exported["embedding"][name], theirs[name])
    if sharing == "gdes":
        delta = np.full(own["token"].shape, 0.5, np.float32)
        params["model"]["embedding"]["token"] = delta
        table = learner.bind_model(params).tables()["token"]
        np.testing.assert_array_equal(table, theirs["token"] + delta)
    assert set(flatten(exported)) == set(flatten(params["model"]))


@pytest.mark.slow
def test_losses_by_hand(made):
    learner, params = made["gdes"]
    ids = {name: BATCH[f"encoder_{name}"] for name in ("segment_ids", "positions")}

    @jax.jit
    def pieces(params):
        """The loss, and what it is made of."""
        module = learner.bind(params)
        rtd = module.objective
        mask_key, draw_key = jax.random.split(jax.random.key(0))
        inputs, slots = rtd.config.draw(BATCH, vocab_size=VOCAB, pad_id=0, key=mask_key)
        states = masked_lm.at_slots(rtd.generator(inputs, **ids), slots)
        logits = rtd.generator_head(states, params["objective"]["generator"]["embedding"]["token"])
        sampled = draw(logits, draw_key, temperature=1.0)
        drawn = masked_lm.put_at_slots(BATCH["encoder_input_tokens"], slots, sampled)
        hidden = module.model(drawn, **ids)
        found = inputs, slots, jax.nn.log_softmax(logits), drawn, module.heads.rtd(hidden)
        return module(BATCH), found

    loss, found = pieces(params)
    inputs, slots, log_p, drawn, logits = jax.tree.map(np.asarray, found)
    tokens = np.asarray(BATCH["encoder_input_tokens"])
    assert set(inputs[inputs != tokens]) == {MASK}
    used = slots.used > 0
    # 0.3 of 12, 10 and 8 tokens.
    assert used.sum(axis=1).tolist() == [4, 3, 2]
    targets = np.take_along_axis(tokens, slots.positions, axis=1)
    likelihoods = np.take_along_axis(log_p, targets[..., None], axis=-1)[..., 0]
    total, weight, scale = loss.terms["generator"]
    np.testing.assert_allclose(total, -np.sum(likelihoods[used]), rtol=1e-5)
    assert (float(weight), float(scale)) == (9, 1)

    label, real = drawn != tokens, np.asarray(BATCH["encoder_segment_ids"]) > 0
    # Replaced are some of the masked, of which the generator reads 85 % as [MASK].
    assert 0 < label.sum() <= 9
    losses = np.where(label, np.log1p(np.exp(-logits)), np.log1p(np.exp(logits)))
    total, weight, scale = loss.terms["discriminator"]
    np.testing.assert_allclose(total, np.sum(losses[real]), rtol=1e-5)
    assert (float(weight), float(scale)) == (real.sum(), 50)
    ranked = loss.metrics["detection_auc"]
    assert (float(np.sum(ranked.positives)), float(np.sum(ranked.negatives))) == (
        label.sum(), (real & ~label).sum(),
    )  # fmt: skip
    above = logits[label][:, None] - logits[real & ~label][None]
    area = np.mean((above > 0) + 0.5 * (above == 0))
    assert abs(float(ranked.area()) - area) <= float(ranked.error()) + 1e-6 < 0.05
    sums = {name: value for name, value in loss.metrics.items() if name != "detection_auc"}
    got = {name: tuple(map(float, value)) for name, value in sums.items()}
    assert got["replaced"] == (label.sum(), real.sum())
    assert got["detection_accuracy"] == (np.sum((logits > 0)[real] == label[real]), real.sum())
    assert got["detection_recall"] == (np.sum((logits > 0) & label & real), label.sum())


@pytest.mark.slow
def test_the_decoupled_discriminator_reads_the_updated_table_and_the_earlier_draw():
    made = learner_of(objective(sharing="gdes", decoupled=True))
    step, state = started(made)
    generator, discriminator = made.updates()
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), 1), 0)

    @jax.jit
    def by_hand(params):
        def value(trained):
            loss = generator.loss_of(params)(trained, BATCH, key)
            return loss.value(), loss.features

        part = generator.part(params)
        grads, features = jax.grad(value, has_aux=True)(part)
        updated, _ = generator.apply(grads, generator.optimizer.init(part), params)
        batch = {**BATCH, **features}
        losses = [discriminator.loss_function(given, batch, key) for given in (updated, params)]
        return [loss.terms["discriminator"].total for loss in losses], features["drawn_tokens"]

    (updated, stale), drawn = by_hand(state.params)
    assert float(updated) != float(stale)
    assert np.any(np.asarray(drawn) != np.asarray(BATCH["encoder_input_tokens"]))
    state, metrics = step(state, BATCH)
    weight = float(np.sum(np.asarray(BATCH["encoder_segment_ids"]) > 0))
    np.testing.assert_allclose(metrics["detection_loss"], updated / weight, rtol=1e-5)
    assert set(state.optimizer) == {"generator", "discriminator"}
    assert float(metrics["generator_learning_rate"]) == pytest.approx(0.01)


def test_the_decoupled_discriminator_may_have_its_own_optimizer():
    own = AdamW(schedule=Constant(value=0.5))
    made = learner_of(objective(sharing="nes", decoupled=True, discriminator_optimizer=own))
    rates = [float(update.schedule(0)) for update in made.updates()]
    assert rates == pytest.approx([0.01, 0.5])
    trains = {update.name: set(flatten(update.part(made.shapes))) for update in made.updates()}
    assert "objective/generator/embedding/token" in trains["generator"]
    assert "heads/rtd/out/kernel" in trains["discriminator"]
    assert sum(map(len, trains.values())) == len(flatten(made.shapes))


def test_two_updates_are_the_default_but_with_es():
    for sharing, given, two in (
        ("es", None, False),
        ("nes", None, True),
        ("gdes", None, True),
        ("gdes", False, False),
    ):
        assert bool(objective(sharing=sharing, decoupled=given).phases()) == two


def test_what_none_stands_for_is_no_difference():
    made = objective(head="deberta")
    assert made.resolved({}) == objective(
        head="deberta", share_embedding_norm=False, decoupled=False
    ).resolved({})
    assert objective().resolved({}) != objective(share_embedding_norm=False).resolved({})


def test_draws_follow_the_logits_and_the_temperature():
    logits = jnp.broadcast_to(jnp.log(jnp.array([0.8, 0.2])), (20_000, 2))
    for temperature, expected in ((1.0, 0.2), (2.0, 1 / 3)):
        drawn = draw(logits, jax.random.key(0), temperature=temperature)
        np.testing.assert_allclose(np.mean(np.asarray(drawn)), expected, atol=0.01)


def test_what_cannot_be_shared_besides_the_tables():
    typed = objective(generator=GENERATOR.replace(token_types=0))
    with pytest.raises(InputError, match=r"equal token_types of .* has 0 and model has 2; set"):
        Learner.of(DISCRIMINATOR, typed)
    Learner.of(DISCRIMINATOR, dataclasses.replace(typed, share_embedding_norm=False))
    # A DeBERTa's norm is after the projection.
    sizes = {"vocab_size": VOCAB, "d_ff": 16, "num_layers": 1, "embedding_size": 8}
    model = DebertaConfig(**sizes, d_model=16, num_heads=2, position_buckets=4, max_positions=16)
    generator = model.replace(d_model=4, num_heads=1)
    with pytest.raises(InputError, match=r"embedding_norm_size .* has 4 and model has 16"):
        Learner.of(model, objective(generator=generator))


@pytest.mark.slow
def test_deberta_with_an_enhanced_mask_decoder_in_the_generator():
    model = DebertaConfig(
        vocab_size=VOCAB, d_model=16, d_ff=32, num_heads=2, num_layers=1, max_positions=16,
        position_buckets=4,
    )  # fmt: skip
    config = objective(
        generator=model.replace(enhanced_mask_decoder=True, num_layers=2),
        sharing="gdes",
        head="deberta",
        mask_fraction=1.0,
    )
    learner = Learner.of(model, config)
    loss = jax.jit(learner.loss)(random(learner.shapes), rows(packed=True))
    assert np.isfinite(float(loss.value()))
    assert set(learner.shapes["model"]["embedding"]) == {"token", "norm"}


def test_configs_are_saved():
    config = objective(discriminator_optimizer=AdamW(schedule=Constant()), sharing="nes",
                       decoupled=True)  # fmt: skip
    assert from_json(to_json(config), source="here") == config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decoupled": True}, "decoupled requires objective.sharing gdes or nes"),
        (
            {"share_embedding_norm": True, "sharing": "nes"},
            "share_embedding_norm requires objective.sharing es",
        ),
        ({"temperature": 0.0}, "temperature must be above 0: got 0.0"),
        (
            {"discriminator_optimizer": AdamW(schedule=Constant())},
            "discriminator_optimizer requires separate updates",
        ),
    ],
)
def test_refuses_nonsense(changes, message):
    with pytest.raises(InputError, match=message):
        objective(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 51}, "equal vocab_size .* objective.generator has 51 and model has 50"),
        ({"embedding_size": 4}, "objective.sharing es requires equal table_size"),
        ({"max_positions": 32}, "requires equal max_positions"),
    ],
)
def test_refuses_generators_whose_tables_cannot_be_shared(changes, message):
    config = objective(generator=dataclasses.replace(GENERATOR, **changes))
    with pytest.raises(InputError, match=message):
        Learner.of(DISCRIMINATOR, config)
    if "vocab_size" not in changes:
        separate = dataclasses.replace(config, sharing="nes")
        Learner.of(DISCRIMINATOR, separate)
