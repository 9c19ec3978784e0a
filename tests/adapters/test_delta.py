import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.adapters.delta import Delta, Identity, Module
from t5x_lite.adapters.delta_parts import Dense, LowRank, Scale, Sparse
from t5x_lite.core import tied_parameters, trees
from t5x_lite.core.errors import InputError

RNG = np.random.default_rng(0)


def array(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


BASE = {"model": {"wi": {"kernel": array(4, 3), "bias": array(3)}, "wo": {"kernel": array(3, 4)}}}
TUNED = jax.tree.map(lambda x: x + array(*x.shape), BASE)
KERNEL = "model/wi/kernel"
HERE = Identity("runs/t5/100", {KERNEL: "aa", "model/wi/bias": "bb"})
LORA = Delta({KERNEL: LowRank(array(4, 2), array(2, 3), 2.0)}, base=HERE)
BITS = Delta({KERNEL: Sparse.of(array(4, 3), np.array([0, 7]))}, base=HERE)


def changed(delta, path=KERNEL):
    return np.asarray(trees.flatten(delta.apply(BASE))[path]) - trees.flatten(BASE)[path]


def test_a_task_vector_and_back():
    tau = Delta.of(TUNED, BASE)
    after = tau.apply(BASE)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), after, TUNED)
    assert tau.size == 27
    assert tau.nbytes == 4 * 27
    assert Delta.of(BASE, BASE).parts == {}
    more = Delta.of({**TUNED, "heads": {"mlm": {"bias": array(2)}}}, BASE)
    assert set(more.extra) == {"heads/mlm/bias"}
    assert "heads" in more.apply(BASE)
    with pytest.raises(InputError, match="the fine-tuned parameters lack the array model/wi/bias"):
        Delta.of({"model": {"wi": {"kernel": array(4, 3)}}}, BASE)
    with pytest.raises(InputError, match=r"model/wi/bias has shape \(2,\), but the base"):
        Delta.of(trees.overlaid(TUNED, {"model": {"wi": {"bias": array(2)}}}), BASE)


def test_an_empty_delta_is_the_base():
    for empty in (Delta(), 0.0 * LORA, LORA.sparsify(k=0)):
        assert empty.parts == {}
        after = empty.apply(BASE)
        assert all(
            x is y for x, y in zip(jax.tree.leaves(after), jax.tree.leaves(BASE), strict=True)
        )
    zero = Delta({KERNEL: Dense(np.zeros((4, 3), np.float32))})
    np.testing.assert_array_equal(changed(zero), 0)


def test_sums_are_in_float32():
    half = jax.tree.map(lambda x: jnp.asarray(x, jnp.bfloat16), BASE)
    kernel = LORA.apply(half)["model"]["wi"]["kernel"]
    assert kernel.dtype == jnp.bfloat16
    exact = LORA.apply(half, keep_float32=True)["model"]["wi"]["kernel"]
    assert exact.dtype == jnp.float32
    np.testing.assert_array_equal(kernel, exact.astype(jnp.bfloat16))
    with pytest.raises(InputError, match=f"the base has no array {KERNEL}"):
        LORA.apply({"model": {}})
    with pytest.raises(
        InputError, match=r"of shape \(4, 3\), but the base's array has shape \(2, 3\)"
    ):
        LORA.apply({"model": {"wi": {"kernel": array(2, 3)}}})


def test_algebra():
    total = LORA + 0.5 * BITS - LORA * 2
    expected = changed(BITS) / 2 - changed(LORA)
    np.testing.assert_allclose(changed(total), expected, atol=1e-5)
    np.testing.assert_allclose(changed(LORA - LORA), 0, atol=1e-6)
    np.testing.assert_allclose(changed(-LORA), -changed(LORA), atol=1e-6)
    # A path that one of them lacks is 0 there.
    other = Delta({"model/wo/kernel": Dense(array(3, 4))})
    both = LORA + other
    assert set(both.parts) == {KERNEL, "model/wo/kernel"}
    assert both.base == HERE
    with pytest.raises(TypeError):
        LORA + 1


def test_other_bases_and_kinds_raise():
    elsewhere = Identity("runs/other/7", {KERNEL: "zz"})
    message = f"which differ in the array {KERNEL}; base runs/t5/100 has digest {HERE.digest[:16]}"
    with pytest.raises(InputError, match=message):
        LORA + dataclasses.replace(LORA, base=elsewhere)
    with pytest.raises(InputError, match="without a common array"):
        LORA - dataclasses.replace(LORA, base=Identity("x", {"other": "zz"}))
    known = dataclasses.replace(LORA, base=Identity("x", {KERNEL: "aa", "model/more": "cc"}))
    assert set((LORA + known).base.arrays) == {*HERE.arrays, "model/more"}
    scale = Delta({KERNEL: Scale(array(3))}, base=HERE)
    for operation in (lambda: 2 * scale, lambda: LORA + scale, lambda: scale.sparsify(k=1)):
        with pytest.raises(
            InputError, match=r"wi/kernel.* Scale .*difference.*delta.materialise\(base\)"
        ):
            operation()
    dense = scale.materialise(BASE)
    np.testing.assert_allclose(changed(2 * dense), 2 * changed(scale), atol=1e-5)
    twice = BASE["model"]["wi"]["kernel"] * (scale.parts[KERNEL].value ** 2 - 1)
    np.testing.assert_allclose(changed(scale.then(scale)), twice, atol=1e-5)


def test_sparsify_keeps_exactly_k():
    tau = Delta.of(TUNED, BASE, identity=HERE)
    for k in (1, 5, 27):
        few = tau.sparsify(k=k)
        assert sum(part.values.size for part in few.parts.values()) == k
    assert sum(p.values.size for p in tau.sparsify(density=0.2).parts.values()) == round(0.2 * 27)
    every = tau.sparsify(k=27)
    np.testing.assert_array_equal(changed(every), changed(tau))
    assert every.parts[KERNEL].indices.dtype == np.int32
    assert every.base == HERE


def test_factor_of_full_rank_is_the_same():
    tau = Delta.of(TUNED, BASE)
    whole = tau.factor(4)
    np.testing.assert_allclose(changed(whole), changed(tau), atol=1e-5)
    assert isinstance(whole.parts["model/wi/bias"], Dense)
    with pytest.raises(InputError, match="rank must be at least 1, got 0"):
        tau.factor(0)


def test_masks():
    tau = Delta.of(TUNED, BASE)
    assert set(tau.mask(".*/kernel").parts) == {KERNEL, "model/wo/kernel"}
    assert set(tau.mask("model/wi").parts) == {KERNEL, "model/wi/bias"}
    assert set(tau.mask(lambda path: path.endswith("bias")).parts) == {"model/wi/bias"}
    some = tau.mask({"model": {"wi": {"bias": np.array([True, False, True])}}})
    assert np.count_nonzero(some.parts["model/wi/bias"].dense()) == 2
    with pytest.raises(InputError, match="no array that matches 'model/wx'"):
        tau.mask("model/wx")


def test_it_is_a_pytree_and_a_view():
    assert isinstance(LORA, tied_parameters.View)
    seen = tied_parameters.read([LORA], BASE)
    np.testing.assert_array_equal(
        seen["model"]["wi"]["kernel"], LORA.apply(BASE)["model"]["wi"]["kernel"]
    )
    assert seen["model"]["wo"]["kernel"] is BASE["model"]["wo"]["kernel"]
    stored = tied_parameters.write([LORA], seen)
    np.testing.assert_allclose(
        stored["model"]["wi"]["kernel"], BASE["model"]["wi"]["kernel"], atol=1e-6
    )
    gradient = jax.grad(
        lambda delta: jnp.sum(
            delta.apply(BASE)["model"]["wi"]["kernel"] * BASE["model"]["wi"]["kernel"]
        )
    )(LORA)
    expected = 2.0 * BASE["model"]["wi"]["kernel"] @ LORA.parts[KERNEL].b.T
    np.testing.assert_allclose(gradient.parts[KERNEL].a, expected, rtol=1e-5)


@dataclasses.dataclass(frozen=True)
class Branch:
    """A module with one array, whose branch is that array."""

    name: str = "branch"

    def scaled(self, params, factor):
        return {path: factor * x for path, x in params.items()}

    def joined(self, params, other, others):
        [(path, x)], [y] = params.items(), others.values()
        return self, {path: x + y}


def test_heads_come_along_and_modules_are_scaled_and_joined():
    assert isinstance(Branch(), Module)
    path, head = "adapters/branch/encoder/after_mlp/up", {"heads/mlm/bias": np.ones(2)}
    one = Delta(extra={path: np.ones(3), **head}, config=(Branch(),))
    two = Delta(extra={"adapters/two/encoder/after_mlp/up": np.ones(3)}, config=(Branch("two"),))
    total = 2 * one + two
    np.testing.assert_array_equal(total.extra[path], 3)
    assert set(total.extra) == {path, *head}
    assert total.config == (Branch(),)
    np.testing.assert_array_equal(total.extra["heads/mlm/bias"], 1)
    elsewhere = Delta(extra={"adapters/two/decoder/up": np.ones(3)}, config=(Branch("two"),))
    assert [module.name for module in (one + elsewhere).config] == ["branch", "two"]
    again = Delta(extra={"adapters/branch/decoder/up": np.ones(3)}, config=(Branch(),))
    with pytest.raises(InputError, match="two adapters are called branch but have different"):
        one + again
    other = Delta(extra={"heads/mlm/bias": np.zeros(2)})
    with pytest.raises(
        InputError,
        match="both deltas have the head parameter heads/mlm/bias, but heads cannot be added",
    ):
        one + other
    assert set((one.without_heads() + other).extra) == {path, *head}


def test_masks_that_do_not_fit():
    tau = Delta.of({**TUNED, "heads": {"mlm": {"bias": array(2)}}}, BASE)
    with pytest.raises(
        InputError, match=r"of model/wi/bias has shape \(2,\), but the array has shape \(3,\)"
    ):
        tau.mask(trees.unflatten({"model/wi/bias": np.ones(2, bool)}))
    assert tau.mask(trees.unflatten({"model/wi/bias": np.ones(3, bool)})).extra == {}
    assert set(tau.mask(trees.unflatten({"heads/mlm/bias": np.ones(2, bool)})).extra) == {
        "heads/mlm/bias"
    }
    with pytest.raises(InputError, match="must keep all entries of heads/mlm/bias or none"):
        tau.mask(trees.unflatten({"heads/mlm/bias": np.array([True, False])}))
    with pytest.raises(InputError, match=r"'\(' is not a regular expression"):
        tau.mask("(")


@pytest.mark.parametrize("factor", [float("nan"), float("inf"), 1e39, 10**400])
def test_factors_are_finite(factor):
    with pytest.raises(InputError, match="must be a finite float32 number, got"):
        factor * LORA


def test_sources_are_those_of_the_first():
    theirs = Identity("b", HERE.arrays, {KERNEL: "old"})
    assert HERE.with_(theirs).sources == {}
    more = Identity("b", {**HERE.arrays, "model/x": "cc"}, {"model/x": "old"})
    assert HERE.with_(more).sources == {"model/x": "old"}
