"""Masks of attention heads."""

import jax
import numpy as np
import pytest

from t5x_lite.adapters.delta import Delta
from t5x_lite.adapters.grammar import parse_module
from t5x_lite.adapters.masks import Heads
from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import flatten
from tests.adapters.hosts import HOSTS, learner, outputs, random


@pytest.mark.parametrize("host", HOSTS)
def test_masks_of_one_change_nothing_and_merging_gives_the_same(host):
    bare, batch = learner(host)
    made, _ = learner(host, Heads())
    params = random(made.shapes)
    start = {**params, "adapters": made.init(jax.random.key(0))["adapters"]}
    without = {part: x for part, x in params.items() if part != "adapters"}
    expected = outputs(bare, without, batch)
    np.testing.assert_array_equal(outputs(made, start, batch), expected)
    merged = {"model": made.merged(params)}
    found = outputs(made, params, batch)
    np.testing.assert_allclose(found, outputs(bare, {**without, **merged}, batch), atol=1e-5)
    assert np.abs(found - expected).max() > 1e-3
    parts, rest = made.delta_form(params["adapters"])
    assert rest == ()
    ours = flatten(Delta(parts).apply({"model": params["model"]}))
    for path, leaf in flatten(merged).items():
        np.testing.assert_allclose(ours[path], leaf, atol=1e-6, err_msg=path)


def test_sites_of_masks():
    made, _ = learner("t5", parse_module("h = heads('cross_attention')"))
    [(path, mask)] = flatten(made.shapes["adapters"]).items()
    assert (path, mask.shape) == ("h/decoder/cross_attention/hidden/mask", (2, 2))
    with pytest.raises(InputError, match="'heads': no attention layer matches sites mlp/hidden"):
        learner("t5", Heads(sites=("mlp/hidden",)))
