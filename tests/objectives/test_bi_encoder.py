"""Vectors of queries and passages: the head's projection, two towers, T5's encoder."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.adapters.config import Adapters
from t5x_lite.core import trees
from t5x_lite.core.errors import InputError
from t5x_lite.models.heads import by_name
from t5x_lite.models.t5 import T5EncoderConfig
from t5x_lite.models.vector_heads import Dense, as_model, in_tower, tower_of
from t5x_lite.objectives.contrastive import Contrastive, dpr
from t5x_lite.objectives.learner import Learner
from t5x_lite.optim.config import AdamW, Constant
from tests.objectives.encoder_rows import CLS, MODEL, SEP, groups, random

BATCH = groups([[CLS, 10, SEP], [CLS, 11, 12, SEP]], [[[CLS, 20, SEP]], [[CLS, 21, 22, SEP]]])


def rows_of(learner, params, batch=BATCH):
    bound = learner.bind(params)
    return bound(batch).rows


@pytest.mark.slow
def test_two_towers_begin_alike_and_are_trained_apart():
    learner = Learner.of(MODEL, dpr(), optimizer=AdamW(schedule=Constant(value=0.1)))
    params = jax.jit(learner.init)(jax.random.key(0))
    assert set(params) == {"model", "towers"}
    own, passage = trees.flatten(params["model"]), trees.flatten(params["towers"]["passage"])
    assert own.keys() == passage.keys()
    assert all(np.array_equal(own[path], passage[path]) for path in own)
    other = jax.tree.map(lambda x: x, random(learner.shapes))
    same = {"model": other["model"], "towers": {"passage": other["model"]}}
    one = Learner.of(MODEL, dpr(towers="one"))
    for name, value in rows_of(one, {"model": other["model"]}).items():
        np.testing.assert_allclose(rows_of(learner, same)[name], value, atol=1e-6)
    moved = rows_of(learner, other)
    np.testing.assert_array_equal(moved["queries"], rows_of(learner, same)["queries"])
    assert np.max(np.abs(moved["passages"] - rows_of(learner, same)["passages"])) > 0.1
    grads = jax.grad(lambda p: learner.whole_loss(p, BATCH).value())(other)
    of_passage = trees.flatten(grads["towers"]["passage"])
    assert np.any(np.asarray(of_passage["layers/mlp/wi/kernel"]) != 0)
    assert all(map(learner.trains, trees.flatten(learner.shapes)))
    assert learner.bind(other).encoder("query") is not learner.bind(other).encoder("passage")


@pytest.mark.slow
@pytest.mark.gate("lora", "layers", "bitfit")
@pytest.mark.parametrize(
    ("line", "merges"),
    [
        pytest.param("m = lora(r=2)", True, id="lora"),
        pytest.param("m = layers(last=1)", True, id="layers"),
        pytest.param("m = bitfit()", True, id="bitfit"),
        pytest.param("m = movement(steps=4)", True, id="movement"),
        pytest.param("m = seq_bn(reduction=2)", False, id="seq_bn"),
        pytest.param("m = prefix(length=2, hidden=4)", False, id="prefix"),
        pytest.param("m = seq_bn(reduction=2) + lora(r=2)", False, id="union"),
        pytest.param("m = unipelt()", False, id="unipelt"),
    ],
)
def test_a_tower_has_adapters_of_its_own(line, merges):
    (adapter,) = Adapters(add=(line,)).modules
    two = Learner.of(MODEL, dpr(), adapters=(adapter,))
    one = Learner.of(MODEL, dpr(towers="one"), adapters=(adapter,))
    params = random(two.shapes)
    flat, found = trees.flatten(params), rows_of(two, params)
    for tower, name in (("", "queries"), ("passage", "passages")):
        own = as_model(flat, tower)
        assert own.keys() == trees.flatten(one.shapes).keys()
        alone = rows_of(one, trees.unflatten(own))[name]
        np.testing.assert_allclose(found[name], alone, rtol=1e-5, atol=1e-5)
        trained = {in_tower(path, tower) if tower else path for path in own if one.trains(path)}
        assert trained == {path for path in flat if two.trains(path) and in_role(path, tower)}
        if merges:
            merged = {"model": two.merged(params, tower=tower)}
            bare = rows_of(Learner.of(MODEL, dpr(towers="one")), merged)[name]
            np.testing.assert_allclose(bare, alone, rtol=1e-4, atol=1e-4)


def in_role(path, tower):
    found = tower_of(path)
    return (found[0] if found else "") == tower


def test_adapters_of_towers_begin_alike_and_the_base_is_frozen():
    adapters = Adapters(add=("m = lora(r=2)",), base_dtype="bfloat16")
    learner = Learner.of(MODEL, dpr(), adapters=adapters.modules, base_dtype="bfloat16")
    params = trees.flatten(learner.init(jax.random.key(0)))
    assert {p: x.dtype for p, x in params.items()} == {
        p: x.dtype for p, x in trees.flatten(learner.shapes).items()
    }
    towers = {path: tower_of(path) for path in params if tower_of(path)}
    assert 2 * len(towers) == len(params)
    for path, (name, of_model) in towers.items():
        assert name == "passage"
        assert in_tower(of_model, name) == path
        np.testing.assert_array_equal(params[path], params[of_model])
        assert params[path] is not params[of_model]
        assert learner.trains(path) == learner.trains(of_model) == path.startswith("adapters/")
        is_base = path.startswith("towers/")
        assert params[path].dtype == (jnp.bfloat16 if is_base else jnp.float32)


def test_parts_by_name_mean_all_towers():
    for name, kind in (("norms", "norm"), ("base", "")):
        adapters = Adapters(add=("m = lora(r=2)",), train=("m", name))
        learner = Learner.of(MODEL, dpr(), adapters=adapters.modules, train=adapters.trained)
        trained = {path for path in trees.flatten(learner.shapes) if learner.trains(path)}
        own = {path for path in trained if path.startswith("model/")}
        assert own
        assert all(kind in path for path in own)
        assert {in_tower(path, "passage") for path in own} <= trained
        assert in_tower("adapters/m/encoder/attention/query/a", "passage") in trained or any(
            path.startswith("adapters/m/towers/passage/") for path in trained
        )


def test_a_schedule_of_an_adapter_is_that_of_all_towers():
    (adapter,) = Adapters(add=("m = movement(steps=4)",)).modules
    optimizer = AdamW(schedule=Constant(value=0.1))
    (update,) = Learner.of(MODEL, dpr(), adapters=(adapter,), optimizer=optimizer).updates()
    found = update.scheduled(jnp.int32(2))
    assert set(found) == {"adapters/m/share/kept", "adapters/m/towers/passage/share/kept"}
    assert len({float(value) for value in found.values()}) == 1


@pytest.mark.parametrize("tied", [True, False])
def test_a_projection_reads_the_pooled_state(tied):
    objective = Contrastive(projection=3, tied_projection=tied, normalize=False)
    learner = Learner.of(MODEL, objective)
    paths = sorted(path for path in trees.flatten(learner.shapes) if path.startswith("heads/"))
    roles = ["query"] if tied else ["query", "passage"]
    named = [f"heads/dense/{role}/{leaf}" for role in roles for leaf in ("bias", "kernel")]
    assert paths == sorted(named)
    params = random(learner.shapes)
    hidden = learner.bind_model(params)(BATCH["passage_tokens"][:, 0])
    layer = params["heads"]["dense"][roles[-1]]
    expected = hidden[:, 0] @ layer["kernel"] + layer["bias"]
    found = rows_of(learner, params)["passages"][:, 0]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_what_none_stands_for_is_the_checkpoint_s():
    kept = by_name([Dense(pooling="mean", normalize=False, projection=4, tied=False)])
    resolved = Contrastive().resolved(kept)
    assert resolved == Contrastive(
        pooling="mean", normalize=False, projection=4, tied_projection=False
    )
    (head,) = Contrastive(projection=8).heads(kept)
    assert (head.projection, head.tied, head.pooling) == (8, True, "mean")


@pytest.mark.exhaustive
def test_t5_s_encoder_trains():
    model = T5EncoderConfig(
        vocab_size=50, d_model=8, d_kv=4, d_ff=16, num_heads=2, num_layers=1, dropout_rate=0.0
    )
    learner = Learner.of(model, Contrastive(pooling="mean"))
    params = jax.jit(learner.init)(jax.random.key(0))
    batch = groups([[10, 1], [11, 1]], [[[20, 1]], [[21, 22, 1]]])
    value, grads = jax.value_and_grad(lambda p: learner.whole_loss(p, batch).value())(params)
    assert np.isfinite(value)
    assert all(np.any(np.asarray(leaf) != 0) for leaf in jax.tree.leaves(grads["model"]["encoder"]))
    with pytest.raises(InputError, match=r"rows of a .* do not; set pooling"):
        Learner.of(model, Contrastive())
    shapes = {"query_tokens": (16,), "passage_tokens": (3, 32)}
    flops = Contrastive().forward_flops(model, shapes)
    assert flops == model.layer_flops(16) + 3 * model.layer_flops(32)
