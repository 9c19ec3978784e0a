"""Training in a random subspace: exactly d numbers, the base at the start, and its delta."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.adapters import delta_parts
from t5x_lite.adapters.delta import Delta
from t5x_lite.adapters.sparse import Fastfood, said
from t5x_lite.core import trees
from t5x_lite.core.errors import InputError
from tests.adapters.hosts import learner, random

KERNELS = ("model/layers/mlp/wi/kernel", "model/layers/mlp/wo/kernel", "model/embedding/token")


def trained(made):
    flat = trees.flatten(made.shapes["adapters"])
    return {path: leaf.shape for path, leaf in flat.items() if made.trains(f"adapters/{path}")}


@pytest.mark.exhaustive
def test_d_numbers_train_and_begin_as_the_base():
    """The lambdas of SAID are taken from d: its code counts one too many, z among them."""
    made, batch = learner("bert", said(name="a", d=20, targets=KERNELS))
    assert sum(np.prod(shape, dtype=int) for shape in trained(made).values()) == 20
    assert trained(made)["a/z"] == (15,)
    assert trained(made)["a/layers/mlp/wi/kernel/factor"] == (2,)
    params = made.init(jax.random.key(0))
    changed = trees.flatten(made.changed(params)["model"])
    for path, leaf in trees.flatten(params["model"]).items():
        np.testing.assert_array_equal(changed[path], leaf, err_msg=path)
    params = {**params, "adapters": random(made.shapes["adapters"])}

    def loss(theta):
        return made.loss({**params, "adapters": theta}, batch).value()

    gradient = trees.flatten(jax.jit(jax.grad(loss))(params["adapters"]))
    assert all(np.all(np.abs(x) > 0) for x in gradient.values())
    parts, rest = made.delta_form(params["adapters"])
    assert rest == ()
    assert {p: type(x) for p, x in parts.items()} == dict.fromkeys(KERNELS, delta_parts.Fastfood)
    applied = trees.flatten(Delta(parts).apply({"model": params["model"]}))
    merged = trees.flatten(jax.jit(made.merged)(params))
    for path in KERNELS:
        np.testing.assert_allclose(
            merged[path.removeprefix("model/")], applied[path], atol=1e-6, err_msg=path
        )


def test_what_is_refused():
    for options, message in (
        ({"d": 5, "lambdas": True}, "d must be above 5, the number of layer factors"),
        (
            {"d": 300},
            r"vector has 300 values, but array model/\S+ has only 128 entries .* fold=True",
        ),
        (
            {"d": 2**22, "projection": "dense"},
            "a dense projection matrix for .* maximum is 268435456",
        ),
    ):
        with pytest.raises(InputError, match=message):
            learner("bert", Fastfood(targets=KERNELS, **options))
    with pytest.raises(InputError, match="d must be at least 1"):
        Fastfood(d=0)
    made, _ = learner("bert", Fastfood(d=300, fold=True, targets=KERNELS))
    assert trained(made) == {"fastfood/z": (300,)}
    assert jnp.zeros(300).shape == made.shapes["adapters"]["fastfood"]["z"].shape
