"""Copies of the base's layers and arrays: they train as the base itself would, and it stays."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.adapters.delta import Delta
from t5x_lite.adapters.delta_parts import Dense, Sparse
from t5x_lite.adapters.grammar import parse_module
from t5x_lite.adapters.lora import Lora
from t5x_lite.adapters.whole_arrays import Copy, Layers
from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import count_parameters, flatten
from t5x_lite.models.t5 import T5Config
from t5x_lite.objectives.learner import Learner
from t5x_lite.objectives.likelihood import Seq2Seq
from tests.adapters.hosts import HOSTS, SIZES, learner, outputs, random

LAST = Layers(last=1)


@pytest.mark.exhaustive
@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.slow
def test_a_copy_trains_as_the_base_would(host):
    """At the start it is the base; its gradient is that of the base's own layer."""
    bare, batch = learner(host)
    made, _ = learner(host, LAST)
    params = random(bare.shapes)
    start = made.init(jax.random.key(0))
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(start["adapters"]))
    whole = {**params, "adapters": start["adapters"]}
    np.testing.assert_array_equal(
        outputs(made, whole, batch), outputs(bare, params, batch), strict=True
    )
    stacks = {"t5": ("encoder/layers", "decoder/layers")}.get(host, ("layers",))
    inside = {p: x for p, x in flatten(bare.shapes["model"]).items() if p.startswith(stacks)}
    copied = flatten(made.shapes["adapters"]["layers"])
    assert {p: x.shape for p, x in copied.items()} == {
        p: (1, *x.shape[1:]) for p, x in inside.items()
    }
    assert all(path.startswith(("adapters/", "heads/")) for path in flatten(made.shapes)
               if made.trains(path))  # fmt: skip

    def gradient(one, given, part):
        loss = lambda theta: one.loss({**given, part: theta}, batch).value()  # noqa: E731
        return flatten(jax.jit(jax.grad(loss))(given[part]))

    found, full = gradient(made, whole, "adapters"), gradient(bare, params, "model")
    for path in copied:
        np.testing.assert_allclose(
            found[f"layers/{path}"], full[path][-1:], rtol=1e-5, atol=1e-6, err_msg=path
        )


@pytest.mark.gate("adapters1")
@pytest.mark.parametrize(
    "adapters",
    [
        (LAST,),
        (Copy(of=("model/token_embedding", "model/.*norm/scale")), Lora(rank=2)),
        (Copy(of=("model/token_embedding/table",), rows=(11, 3)), Lora(rank=2)),
        (Layers(only=(1, 2)), Lora(rank=2, sites=("attention/.*",))),
    ],
)
@pytest.mark.slow
def test_merging_writes_the_copy_and_a_delta_adds_it(adapters):
    made, batch = learner("t5", *adapters)
    bare, _ = learner("t5")
    params = random(made.shapes)
    merged = {"model": made.merged(params)}
    np.testing.assert_allclose(
        outputs(made, params, batch), outputs(bare, merged, batch), rtol=1e-5, atol=1e-5
    )
    parts, rest = made.delta_form(params["adapters"])
    assert rest == ()
    ours = flatten(Delta(parts).apply({"model": params["model"]}))
    for path, leaf in flatten(merged).items():
        np.testing.assert_allclose(ours[path], leaf, atol=1e-6, err_msg=path)
        moved = not np.array_equal(leaf, flatten(params)[path])
        assert moved == (path in parts), path


@pytest.mark.exhaustive
def test_few_layers_are_few_numbers_of_a_delta():
    model = T5Config(**SIZES, d_kv=4, num_encoder_layers=3, num_decoder_layers=1)
    made = Learner.of(model, Seq2Seq(), adapters=(parse_module("top = layers(last=1)"),))
    params = random(made.shapes)
    parts, _ = made.delta_form(params["adapters"])
    kinds = {path.split("/")[1]: type(part) for path, part in parts.items()}
    assert kinds == {"encoder": Sparse, "decoder": Dense}
    path = "model/encoder/layers/mlp/wo/kernel"
    base = flatten(params)[path]
    half = (0.5 * Delta(parts)).apply({"model": params["model"]})
    theirs = flatten(params["adapters"]["top"])["encoder/layers/mlp/wo/kernel"][0]
    np.testing.assert_array_equal(flatten(half)[path][:2], base[:2])
    np.testing.assert_allclose(flatten(half)[path][2], base[2] + 0.5 * theirs, rtol=1e-6)
    numbers = sum(part.values.size for part in parts.values() if isinstance(part, Sparse))
    assert numbers == count_parameters(params["adapters"]["top"]["encoder"])


def test_rows_of_an_array_are_copied():
    """The other rows keep the base's values, and the adapter does not store them."""
    made, _ = learner("bert", Copy(of=("model/embedding/token",), rows=(7, 2)))
    params = random(made.shapes)
    base, own = params["model"]["embedding"]["token"], params["adapters"]["copy"]["embedding"]
    token = np.asarray(made.changed(params)["model"]["embedding"]["token"])
    assert own["token"].shape == (2, base.shape[1])
    np.testing.assert_array_equal(token[[2, 7]], base[np.array([2, 7])] + own["token"])
    others = np.delete(np.arange(len(base)), [2, 7])
    np.testing.assert_array_equal(token[others], base[others])


def test_the_sum_is_made_before_the_cast():
    """A step that is too small for bfloat16 counts together with the base's own rest."""
    adapter = Copy(of=("model/embedding/token",))
    made, _ = learner("bert", adapter, dtype="bfloat16")
    params = jax.tree.map(jnp.zeros_like, random(made.shapes))
    base = 1.0 + 3 * 2.0**-10  # bfloat16 has 1 and 1 + 2^-7, and would round both terms down
    params["model"]["embedding"]["token"] += base
    params["adapters"]["copy"]["embedding"]["token"] += 2.0**-9
    token = flatten(jax.tree.map(np.asarray, made.changed(params)))["model/embedding/token"]
    assert np.all(token == base + 2.0**-9)
    model: Any = made.bind_model(params)
    assert np.all(np.asarray(model.embedding.token[...], np.float32) == 1 + 2**-7)


@pytest.mark.slow
def test_what_cannot_be_copied():
    for adapter, message in (
        (Copy(), r"'copy' selects no arrays to copy; add paths, such as copy\('model/...'\)"),
        (Copy(of=("modle",)), "'copy': 'modle' matches no parameter of the model"),
        (
            Copy(of=("model/token_embedding",), rows=(3, 99)),
            "'copy': rows names row 99, but model/token_embedding/table has the rows 0 to",
        ),
        (
            Layers(),
            r"'layers' selects no layer; set last, such as last=2, or only, such as only=\(0, 1\)",
        ),
        (Layers(last=3), "last is 3, but the model's stacks have at most 2 layers"),
        (Layers(only=(0, 4)), "'layers' names layer 4, but the model's layers are 0 to 3"),
    ):
        with pytest.raises(InputError, match=message):
            learner("t5", adapter)
    with pytest.raises(InputError, match="last and only both select layers"):
        Layers(last=1, only=(0,))
    other = Copy(of=("model/encoder/layers/mlp",))
    with pytest.raises(
        InputError, match=r"both use the site model/encoder/layers/\S+, layer 1; remove"
    ):
        learner("t5", LAST, Layers(name="both", only=(0, 1)))
    with pytest.raises(
        InputError, match=r"both use the site model/encoder/layers/mlp/\S+, layer 1; remove"
    ):
        learner("t5", other, LAST)
    learner("t5", LAST, Layers(name="below", only=(0, 2)))
    model, objective, _ = HOSTS["t5"]
    shared = dataclasses.replace(model, share_layers=True)
    with pytest.raises(InputError, match=r"model/\S+ is shared with another array, so no adapter"):
        Learner.of(shared, objective, adapters=(LAST,))
