"""Adapters on every family, by one test each of what must hold of all."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.adapters.base import Adapter, by_name
from t5x_lite.adapters.bottleneck import Bottleneck, par_bn, seq_bn
from t5x_lite.adapters.ia3 import Ia3
from t5x_lite.adapters.lora import Lora
from t5x_lite.errors import InputError
from t5x_lite.learner import Learner
from t5x_lite.objectives.electra import Electra
from t5x_lite.optim.config import AdamW
from t5x_lite.optim.schedules import Constant
from t5x_lite.optim.updates import joint_optimizer
from t5x_lite.sharding import MeshConfig, make_mesh
from t5x_lite.train.state import init_state, state_shardings
from t5x_lite.train.step import make_train_step
from t5x_lite.trees import flatten
from tests.adapters.hosts import HOSTS, learner, outputs, random

ADAPTERS = {
    "lora": Lora(rank=2, alpha=4.0, sites=(".*attention/.*", "mlp")),
    "dora": Lora(rank=2, alpha=4.0, sites=(".*attention/.*", "mlp"), dora=True),
    "ia3": Ia3(attention_out=True),
    "ia3_before": Ia3(place="before"),
    "bottleneck": seq_bn(reduction=4.0, init="mam"),
    "parallel": par_bn(reduction=4.0, sites=("after_.*",)),
}


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("host", HOSTS)
def test_on_every_family(host, adapter):
    """Identity at the start, merged as attached, a frozen base, and nothing of the base moves."""
    plain, batch = learner(host)
    made, _ = learner(host, ADAPTERS[adapter])
    name = ADAPTERS[adapter].name
    params = jax.jit(made.init)(jax.random.key(0))
    base = {part: params[part] for part in params if part != "adapters"}
    assert set(flatten(base)) == set(flatten(plain.shapes))
    places = {path.split("/")[1] for path in flatten(params) if path.startswith("adapters/")}
    assert places == {name}
    expected = jax.jit(lambda p: outputs(plain, p, batch))(base)
    np.testing.assert_array_equal(jax.jit(lambda p: outputs(made, p, batch))(params), expected)

    moved = {**params, "adapters": random(made.shapes["adapters"])}
    attached = jax.jit(lambda p: outputs(made, p, batch))(moved)
    least = 0.001 if adapter.startswith("ia3") else 0.01  # the base of BERT is small at the start
    assert np.abs(np.asarray(attached) - np.asarray(expected)).max() > least
    if adapter in ("lora", "dora", "ia3", "ia3_before"):
        merged = {**base, "model": jax.jit(made.merged)(moved)}
        found = jax.jit(lambda p: outputs(plain, p, batch))(merged)
        np.testing.assert_allclose(found, attached, rtol=1e-5, atol=1e-5)
    else:
        with pytest.raises(InputError, match=r"after_mlp cannot be merged|after_attention cannot"):
            made.merged(moved)

    (update,) = updates = made.updates()
    trained = flatten(update.part(made.shapes))
    own = {path for path in flatten(made.shapes) if not path.startswith("model/")}
    assert set(trained) == own
    mesh = make_mesh(MeshConfig())
    layout = state_shardings(mesh, made.axes, made.optimizer_axes())
    state = init_state(made.init, joint_optimizer(updates), layout, seed=0)
    assert not [path for path in flatten(state.optimizer) if "model/" in path]
    before = flatten(jax.tree.map(np.asarray, state.params))
    step = make_train_step(updates, mesh=mesh, layout=layout, seed=0, microbatches=1)
    for _ in range(50):
        state, _ = step(state, batch)
    after = flatten(state.params)
    still = {path for path, leaf in after.items() if np.array_equal(leaf, before[path])}
    assert {path for path in after if path.startswith("model/")} <= still
    assert not {path for path in still if path.startswith("adapters/")}


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_decoding_with_fused_kernels_is_decoding_without(adapter):
    made, batch = learner("t5", ADAPTERS[adapter])
    straight = Learner.of(made.model.unrolled(), made.objective, adapters=made.adapters)
    params = random(made.shapes)
    inputs = batch["encoder_input_tokens"]

    @jax.jit
    def steps(params):
        """Logits of three tokens, of the model as it is and laid out, and by teacher forcing."""
        model = made.bind_model(params)
        assert straight.bind_model(params).prepared().decoder.laid_out
        tokens = jnp.array([[0, 9, 10]] * len(inputs))
        found = []
        for decoder in (model, straight.bind_model(params).prepared()):
            logits, cache = decoder.prefill(inputs, max_length=4)
            rows = [logits]
            for i in (1, 2):
                logits, cache = decoder.step(tokens[:, i], cache)
                rows.append(logits)
            found.append(jnp.stack(rows, axis=1))
        return (*found, model(inputs, tokens))

    plain, fused, forced = steps(params)
    np.testing.assert_allclose(fused, plain, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(plain, forced, rtol=1e-5, atol=1e-5)


def test_what_trains_is_said_by_paths():
    made, _ = learner("bert", Lora(), train=("adapters", "model/layers/mlp_norm", ".*/bias"))
    paths = flatten(made.shapes)
    trained = {path for path in paths if made.trains(path)}
    assert "adapters/lora/encoder/attention/query/a" in trained
    assert {"model/layers/mlp_norm/scale", "model/embedding/norm/bias"} <= trained
    assert "model/layers/mlp/wi/kernel" not in trained
    assert "heads/classifier/out/kernel" not in trained
    with pytest.raises(InputError, match=r"'head' means no parameter .* adapters, heads, mod"):
        learner("bert", Lora(), train=("head",))


def test_without_adapters_the_program_is_the_same():
    for host in HOSTS:
        plain, batch = learner(host)
        texts = [
            jax.jit(made.loss).lower(plain.shapes, batch).as_text()
            for made in (plain, dataclasses.replace(plain, adapters=()))
        ]
        assert texts[0] == texts[1]
        assert "adapters" not in plain.shapes


@pytest.mark.parametrize(
    ("adapters", "message"),
    [
        (
            (Lora(sites=("attention/querry",)),),
            "is called 'attention/querry'; did you mean",
        ),
        ((Lora(sites=("after_mlp",)),), "no site is called 'after_mlp'"),
        ((Bottleneck(sites=("mlp/in",)),), "the sites are after_attention, after_mlp"),
        ((Lora(), Lora()), "two adapters are called lora: give one another name"),
    ],
)
def test_what_has_no_place(adapters, message):
    with pytest.raises(InputError, match=message):
        learner("bert", *adapters)


def test_two_at_one_site_are_refused():
    made, _ = learner("bert", Lora(), Lora(name="other"))
    with pytest.raises(InputError, match="'other' would stand at encoder/attention/query"):
        made.bind(random(made.shapes))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "A"}, "the name of an adapter is lower-case letters"),
        ({"name": "attach"}, "no adapter may be called 'attach'"),
        ({"sites": ()}, "adapter 'lora' stands nowhere: give it sites"),
        ({"sites": ("(",)}, r"sites: .* is no regular expression"),
    ],
)
def test_what_is_wrong(fields, message):
    with pytest.raises(InputError, match=message):
        Lora(**fields)


def test_a_base_says_what_it_lacks():
    assert list(by_name([Lora(), Bottleneck()])) == ["lora", "bottleneck"]
    with pytest.raises(TypeError, match="Adapter does not define build"):
        learner("bert", Adapter(name="x", sites=("mlp",)))


def test_an_adapter_may_be_called_names():
    made, batch = learner("bert", Lora(name="names"))
    outputs(made, random(made.shapes), batch)


def test_the_discriminator_of_two_updates_has_its_adapters():
    model, _, _ = HOSTS["bert"]
    objective = Electra(mask_id=3, generator=model, sharing="nes")
    made = Learner.of(
        model, objective, adapters=(Lora(),), optimizer=AdamW(schedule=Constant(value=0.1))
    )
    generator, discriminator = made.updates()
    assert set(flatten(discriminator.part(made.shapes))) == {
        path for path in flatten(made.shapes) if path.startswith(("adapters/", "heads/"))
    }
    assert "objective/generator/embedding/token" in flatten(generator.part(made.shapes))
