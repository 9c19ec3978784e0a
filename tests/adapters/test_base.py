"""Adapters on every family, by one test each of what must hold of all."""

import functools
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.adapters.base import Adapter, by_name
from t5x_lite.adapters.bottleneck import Bottleneck, par_bn, seq_bn
from t5x_lite.adapters.bottleneck_variants import T5Adapter, compacter
from t5x_lite.adapters.lora import Ia3, Lora
from t5x_lite.adapters.sparse import BitFit, Params
from t5x_lite.core.errors import InputError
from t5x_lite.core.sharding import MeshConfig, make_mesh
from t5x_lite.core.trees import flatten, overlaid
from t5x_lite.nn import layers
from t5x_lite.nn.dense import Dense, dropout, einsum
from t5x_lite.objectives.electra import Electra
from t5x_lite.objectives.learner import Learner
from t5x_lite.optim.config import AdamW, Constant
from t5x_lite.optim.partial import joint_optimizer
from t5x_lite.train.step import init_state, make_train_step, state_shardings
from tests.adapters.hosts import HOSTS, learner, outputs, random

ADAPTERS = {
    "lora": Lora(rank=2, alpha=4.0, sites=(".*attention/.*", "mlp")),
    "embedding": Lora(rank=2, alpha=4.0, sites=("embedding", "mlp/in")),
    "dora": Lora(rank=2, alpha=4.0, sites=(".*attention/.*", "mlp"), dora=True),
    "ia3": Ia3(attention_out=True),
    "ia3_before": Ia3(place="before"),
    "bottleneck": seq_bn(reduction=4.0, init="mam"),
    "options": Bottleneck(
        sites=("after_.*",),
        reduction=4.0,
        reductions=((0, 2.0),),
        leave_out=(1,),
        reads="normed",
        activation="swish",
        scale="channel",
        init="mam",
        ln_before=True,
        gate="real_tokens",
    ),
    "compacter": compacter(reduction=2.0, phm_dim=2),
    "bitfit": BitFit(),
    "t5_adapter": T5Adapter(width=4, zero=True, dropout_rate=0.0),
    "parallel": par_bn(reduction=4.0, sites=("after_.*",)),
}


ALWAYS = {
    *(("t5", adapter) for adapter in ("lora", "bottleneck", "bitfit")),
    ("bert", "lora"),
    ("bert", "parallel"),
    ("bert", "options"),
    ("bert", "bitfit"),
    *(("deberta", adapter) for adapter in ("bottleneck", "parallel", "dora", "ia3")),
}
SLOW = {
    *(("t5", adapter) for adapter in ("dora", "options", "t5_adapter")),
    ("bert", "ia3_before"),
    ("bert", "compacter"),
}
"""With these, each kind has been tried; the others are exhaustive."""
SELDOM = ("ia3_before", "compacter", "t5_adapter")


def marked(host, adapter):
    """The marks of a case of every family."""
    if (host, adapter) in ALWAYS:
        return ()
    return [pytest.mark.slow, *[pytest.mark.exhaustive] * ((host, adapter) not in SLOW)]


@functools.cache
def of_the_base(host):
    """A family's learner, and what its model gives for its parameters."""
    made, batch = learner(host)
    return made, jax.jit(lambda params: outputs(made, params, batch))


@pytest.mark.gate("t5-lora", "bert-options", "deberta-parallel")
@pytest.mark.parametrize(
    ("host", "adapter"),
    [pytest.param(host, name, marks=marked(host, name)) for host in HOSTS for name in ADAPTERS],
)
@pytest.mark.slow
def test_on_every_family(host, adapter):
    """Identity at the start, merged as attached, a frozen base, and nothing of the base moves."""
    plain, plainly = of_the_base(host)
    made, batch = learner(host, ADAPTERS[adapter])
    with_adapter = jax.jit(lambda p: outputs(made, p, batch))
    name = ADAPTERS[adapter].name
    params = jax.jit(made.init)(jax.random.key(0))
    base = {part: params[part] for part in params if part != "adapters"}
    assert set(flatten(base)) == set(flatten(plain.shapes))
    places = {path.split("/")[1] for path in flatten(params) if path.startswith("adapters/")}
    assert places == (set() if adapter == "bitfit" and host != "t5" else {name})
    expected, start = plainly(base), with_adapter(params)
    if adapter == "compacter":  # as small as A
        np.testing.assert_allclose(start, expected, atol=1e-4)
    else:
        np.testing.assert_array_equal(start, expected)

    (update,) = updates = made.updates()
    own = {path for path in flatten(made.shapes) if not path.startswith("model/")}
    theirs = {"bitfit": "/(bias|scale)", "t5_adapter": "norm/(scale|bias)"}.get(adapter, "/nothing")
    trained = flatten(update.part(made.shapes))
    others = {path for path in trained if path not in own}
    assert own <= set(trained)
    assert all(re.fullmatch(f"model/.*{theirs}", path) for path in others)

    moved = overlaid(params, random(update.part(made.shapes)))
    attached = with_adapter(moved)
    least = 0.001 if adapter.startswith("ia3") else 0.01  # the base of BERT is small at the start
    assert np.abs(np.asarray(attached) - np.asarray(expected)).max() > least
    mergeable = adapter in ("lora", "embedding", "dora", "ia3", "ia3_before")
    if mergeable or (adapter == "bitfit" and host != "t5"):
        merged = {**base, "model": jax.jit(made.merged)(moved)}
        np.testing.assert_allclose(plainly(merged), attached, rtol=1e-5, atol=1e-5)
    else:
        with pytest.raises(
            InputError, match=r"(after_mlp|after_attention|query) .*cannot be merged"
        ):
            made.merged(moved)

    mesh = make_mesh(MeshConfig())
    layout = state_shardings(mesh, made.axes, made.optimizer_axes())
    state = init_state(made.init, joint_optimizer(updates), layout, seed=0)
    assert len(flatten(state.optimizer["mu"])) == len(trained)
    before = flatten(jax.tree.map(np.asarray, state.params))
    step = make_train_step(updates, mesh=mesh, layout=layout, seed=0, microbatches=1)
    for _ in range(50):
        state, _ = step(state, batch)
    after = flatten(state.params)
    still = {path for path, leaf in after.items() if np.array_equal(leaf, before[path])}
    assert {path for path in after if path.startswith("model/")} - others <= still
    still = {path for path in still if path.startswith("adapters/")}
    # A bias of keys changes no weight of attention.
    assert not {path for path in still if adapter != "bitfit" or "/key/" not in path}


@pytest.mark.gate("bert-fields3")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("host", "fields"),
    [
        ("t5", {"unroll": True, "attention": "blocked", "attention_block": 2}),
        pytest.param("t5", {"remat": "full"}, marks=pytest.mark.exhaustive),
        pytest.param(
            "deberta",
            {"unroll": True, "attention": "blocked", "attention_block": 2},
            marks=pytest.mark.exhaustive,
        ),
        ("bert", {"remat": "dots"}),
    ],
)
def test_however_layers_are_run(host, fields):
    """Gradients are the same; of all kinds of slots at once."""
    made, batch = learner(
        host,
        Lora(rank=2, dora=True, sites=(".*attention/(query|value)",)),
        Ia3(sites=(".*attention/key",), attention_out=True),
        ADAPTERS["options"],
        Params(train=("model/.*norm/scale",)),
    )
    other = Learner.of(made.model.replace(**fields), made.objective, adapters=made.adapters)
    params = random(made.shapes)
    (update,) = made.updates()

    def gradients(learner):
        def loss(theta):
            return learner.loss(overlaid(params, theta), batch).value()

        return flatten(jax.jit(jax.grad(loss))(update.part(params)))

    expected = gradients(made)
    for path, leaf in gradients(other).items():
        least = 1e-5 * np.abs(expected[path]).max() + 1e-7
        np.testing.assert_allclose(leaf, expected[path], rtol=1e-4, atol=least, err_msg=path)


@pytest.mark.gate("lora")
@pytest.mark.parametrize(
    "adapter",
    [pytest.param(name, marks=pytest.mark.slow if name in SELDOM else ()) for name in ADAPTERS],
)
def test_decoding_with_fused_kernels_is_decoding_without(adapter):
    made, batch = learner("t5", ADAPTERS[adapter])
    straight = Learner.of(made.model.unrolled(), made.objective, adapters=made.adapters)
    params = random(made.shapes)
    inputs = batch["encoder_input_tokens"]

    @jax.jit
    def steps(params):
        """Logits of three tokens, of the model as it is and laid out, and by teacher forcing."""
        model = made.bind_model(params)
        fused = straight.bind_model(params).prepared()
        paths, _ = zip(*jax.tree_util.tree_leaves_with_path(fused.params), strict=True)
        assert any("joint_out" in jax.tree_util.keystr(path) for path in paths)
        tokens = jnp.array([[0, 9, 10]] * len(inputs))
        found = []
        for decoder in (model, fused):
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
    with pytest.raises(InputError, match=r"'head' matches no parameter .* adapters, heads, mod"):
        learner("bert", Lora(), train=("head",))


def product_without_slot(self, x, seen=None):
    del seen  # which a slot's gate reads
    batch = "ABCE"[: x.ndim - 1]
    product = einsum(f"{batch}I,IO->{batch}O", x.astype(self.kernel.dtype), self.kernel[...])
    return product + self.bias[...].astype(jnp.float32) if self.has_bias else product


def residual_without_slot(
    x, y, *, rate=0.0, key=None, over_length=False, norm=None, slot=None, source=None, mask=None
):
    x = x + dropout(y, rate, key=key, broadcast_axes=(-2,) if over_length else ())
    return x if norm is None else norm(x)


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.slow
def test_without_adapters_the_program_is_that_of_layers_without_slots(host, monkeypatch):
    made, batch = learner(host)
    assert "adapters" not in made.shapes

    def program():
        def loss(params, batch, key):  # another one each time: JAX knows a function that it traced
            return made.loss(params, batch, key).value()

        return jax.jit(jax.grad(loss)).lower(made.shapes, batch, jax.random.key(0)).as_text()

    with_slots = program()
    monkeypatch.setattr(Dense, "product", product_without_slot)
    for module in [m for m in sys.modules.values() if vars(m).get("residual") is layers.residual]:
        monkeypatch.setattr(module, "residual", residual_without_slot)
    assert program() == with_slots


@pytest.mark.parametrize(
    ("adapters", "message"),
    [
        (
            (Lora(sites=("attention/querry",)),),
            "has no adapter site 'attention/querry'; did you mean",
        ),
        ((Lora(sites=("after_mlp",)),), "the model has no adapter site 'after_mlp'"),
        ((Bottleneck(sites=("mlp/in",)),), "the adapter sites are after_attention, after_mlp"),
        ((Lora(), Lora()), "two adapters are called lora; rename one of them"),
    ],
)
def test_what_has_no_place(adapters, message):
    with pytest.raises(InputError, match=message):
        learner("bert", *adapters)


def test_two_at_one_site_are_refused():
    with pytest.raises(
        InputError, match="'other' and another adapter both use the site encoder/attention/query"
    ):
        learner("bert", Lora(), Lora(name="other"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "A"}, "adapter name 'A' is invalid; use lower-case letters"),
        ({"name": "attach"}, "the adapter name 'attach' is reserved"),
        ({"sites": ()}, "adapter 'lora': option sites is empty; set at least one site"),
        ({"sites": ("(",)}, r"sites: .* is not a regular expression"),
    ],
)
def test_what_is_wrong(fields, message):
    with pytest.raises(InputError, match=message):
        Lora(**fields)


def test_a_base_says_what_it_lacks():
    assert list(by_name([Lora(), Bottleneck()])) == ["lora", "bottleneck"]
    with pytest.raises(TypeError, match="Adapter does not define the method build"):
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
