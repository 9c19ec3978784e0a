import dataclasses

import numpy as np
import pytest

from t5x_lite.adapters.bottleneck import par_bn, seq_bn
from t5x_lite.adapters.delta import Delta, Module
from t5x_lite.adapters.delta_merging import HasParts
from t5x_lite.adapters.lora import Ia3, Lora
from t5x_lite.core import trees
from t5x_lite.core.errors import InputError
from tests.adapters.hosts import HOSTS, learner, outputs, random

EVERYWHERE = Lora(rank=2, alpha=3.0, sites=("(cross_)?attention/.*", "mlp/.*"))


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("module", [EVERYWHERE, dataclasses.replace(EVERYWHERE, dora=True), Ia3()])
def test_parts_are_what_merging_gives(host, module):
    made, _ = learner(host, module)
    params = random(made.shapes)
    parts, rest = made.delta_form(params["adapters"])
    assert rest == ()
    ours = trees.flatten(Delta(parts).apply({"model": params["model"]}))
    for path, merged in trees.flatten({"model": made.merged(params)}).items():
        np.testing.assert_allclose(ours[path], merged, atol=1e-5, err_msg=path)
        assert (path in parts) == (not np.array_equal(ours[path], trees.flatten(params)[path]))


def test_two_loras_at_one_place_are_added_and_blocks_stay():
    made, _ = learner("bert", seq_bn(reduction=2.0), Lora(rank=2))
    parts, rest = made.delta_form(random(made.shapes)["adapters"])
    assert set(parts) == {f"model/layers/attention/{name}/kernel" for name in ("query", "value")}
    assert [adapter.name for adapter in rest] == ["bottleneck"]
    assert isinstance(rest[0], Module)
    assert not isinstance(rest[0], HasParts)


@pytest.mark.parametrize("method", [seq_bn, par_bn])
def test_the_sum_of_two_blocks_is_one(method):
    """Branches from one input: both widths in one block give the sum of what they add."""
    one, two = method(name="one", reduction=4.0), method(name="two", reduction=2.0, scale=3.0)
    extras, changes, batch = [], [], HOSTS["bert"][2]
    for seed, config in ((1, one), (2, two)):
        made, _ = learner("bert", config)
        params = random(made.shapes, seed=seed)
        flat = trees.flatten({"adapters": params["adapters"]})
        extras.append(Delta(extra=flat, config=(config,)))
        changes.append(trees.flatten(params["adapters"]))
    total = extras[0] + 0.5 * extras[1]
    [joined] = total.config
    made, _ = learner("bert", joined)
    assert {p: x.shape for p, x in total.extra.items()} == {
        p: x.shape for p, x in trees.flatten({"adapters": made.shapes["adapters"]}).items()
    }
    x = np.asarray(random(made.shapes)["model"]["embedding"]["token"])[None, :3]

    def branch(kernels, scale):
        hidden = np.maximum(x @ kernels["down/kernel"][0] + kernels["down/bias"][0], 0)
        return scale * (hidden @ kernels["up/kernel"][0] + kernels["up/bias"][0])

    parts = []
    for flat, scale in zip(changes, (one.scale, 0.5 * two.scale), strict=True):
        kernels = {"/".join(path.split("/")[-2:]): np.asarray(v) for path, v in flat.items()}
        parts.append(branch(kernels, scale))
    kernels = {"/".join(p.split("/")[-2:]): np.asarray(v) for p, v in total.extra.items()}
    np.testing.assert_allclose(branch(kernels, joined.scale), sum(parts), rtol=1e-4, atol=1e-5)
    assert joined.scale == 1.0
    assert outputs(made, {**random(made.shapes), **trees.unflatten(total.extra)}, batch).ndim == 3


def test_what_has_no_sum():
    deltas = []
    for config in (seq_bn(name="one"), par_bn(name="two"), seq_bn(name="three", activation="gelu")):
        made, _ = learner("bert", config)
        flat = trees.flatten({"adapters": random(made.shapes)["adapters"]})
        deltas.append(Delta(extra=flat, config=(config,)))
    for other in deltas[1:]:
        with pytest.raises(
            InputError, match=r"bottleneck adapters one and .* cannot be added: they must have"
        ):
            deltas[0] + other
    with pytest.raises(InputError, match="adapter lora cannot be multiplied by 2"):
        Lora().scaled({}, 2.0)
    with pytest.raises(InputError, match="adapters lora and one cannot be added"):
        Lora().joined({}, deltas[0].config[0], {})
