"""Hypernetworks: arrays by hand, a task in a batch of several, alone, and as a bottleneck."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.adapters.bottleneck_variants import ejected, hyper
from t5x_lite.adapters.grammar import parse_module, parse_trees, write_module
from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import flatten, unflatten
from t5x_lite.nn.slots import bind
from tests.adapters.hosts import learner, outputs, random

H = hyper(name="h", tasks=3, embedding=4, hidden=6, reduction=4.0)
SEVERAL = parse_trees("MultiTask(Task(h, of=2), Task(h, of=0), None)")


def test_the_arrays_by_hand():
    """Those of layer 1, task 2, after the feed-forward block."""
    made, _ = learner("bert", H, use=parse_trees("Task(h, of=2)"))
    params = random(made.shapes)
    flat = {p.removeprefix("adapters/h/"): np.asarray(x) for p, x in flatten(params).items()}
    sites = ("after_attention", "after_mlp")
    given = np.concatenate(
        [flat["task_embedding"][2], flat["layer_embedding"][1], flat["site_embedding"][1]]
    )
    hidden = np.maximum(given @ flat["inner/kernel"] + flat["inner/bias"], 0)
    code = hidden @ flat["outer/kernel"] + flat["outer/bias"]
    code = (code - code.mean()) / np.sqrt(code.var() + 1e-5)
    code = code * flat["norm/scale"] + flat["norm/bias"]
    modules = bind(made.graphdef, params).adapters.h
    assert modules.site_names == sites
    found = modules.arrays(modules.at("encoder", "after_mlp"))
    shapes = {"down/kernel": (8, 2), "down/bias": (2,), "up/kernel": (2, 8), "up/bias": (8,)}
    for name, shape in shapes.items():
        part = name.replace("/", "_")
        expected = (code @ flat[f"{part}/kernel"] + flat[f"{part}/bias"]).reshape(shape)
        assert found[name].shape == (2, 3, *shape)
        np.testing.assert_allclose(found[name][1, 2], expected, rtol=1e-5, atol=1e-6)
    # (3 tasks + 2 layers + 2 sites) 4, the network, and four maps of 5 x (16, 2, 16, 8).
    size = 7 * 4 + (12 * 6 + 6) + (6 * 4 + 4) + 2 * 4 + 5 * (16 + 2 + 16 + 8)
    assert sum(x.size for p, x in flatten(params).items() if p.startswith("adapters/")) == size


@pytest.mark.parametrize("host", ["bert", pytest.param("t5", marks=pytest.mark.slow)])
def test_rows_of_several_tasks_are_those_of_each_alone(host):
    """And of the bottleneck that is ejected, which needs no network; None is the bare model."""
    several, batch = learner(host, H, use=SEVERAL)
    params = random(several.shapes)
    ids = jnp.array([0, 1, 2, 0, 1, 1, 2, 0])

    def run(made, params, ids=None):
        model = made.bind_model(params, adapter_ids=ids)
        if host == "t5":
            return model(batch["encoder_input_tokens"], batch["decoder_input_tokens"])
        return model(batch["encoder_input_tokens"], segment_ids=batch["encoder_segment_ids"])

    together = jax.jit(lambda params: run(several, params, ids))(params)
    bare, _ = learner(host)
    modules = bind(several.graphdef, params).adapters.h
    for child, task in ((0, 2), (1, 0), (2, None)):
        if task is None:
            alone = outputs(bare, {k: v for k, v in params.items() if k != "adapters"}, batch)
        else:
            one, _ = learner(host, H, use=parse_trees(f"Task(h, of={task})"))
            alone = jax.jit(lambda params, one=one: run(one, params))(params)
            config, arrays = ejected(H, modules, task=task, name="plain")
            small, _ = learner(host, config)
            own = unflatten({**flatten({"adapters": {}}), **arrays})
            theirs = outputs(small, {**params, **own}, batch)
            np.testing.assert_allclose(theirs, alone, rtol=1e-5, atol=1e-5)
        rows = np.flatnonzero(np.asarray(ids) == child)
        np.testing.assert_allclose(together[rows], alone[rows], rtol=1e-5, atol=1e-5)
    assert not np.allclose(together[0], together[3 if host == "t5" else 1])


def test_what_trains_is_what_the_rows_have():
    """The network, and the embeddings of tasks that have a row; the base stays."""
    use = parse_trees("MultiTask(Task(h, of=0), Task(h, of=1), Task(h, of=2))")
    made, batch = learner("bert", H, use=use)
    batch = {**batch, "adapter_ids": jnp.array([0, 2] * 4)}
    params = made.init(jax.random.key(0))

    def value(theta):
        return made.loss({**params, "adapters": theta}, batch, jax.random.key(1)).value()

    gradient = flatten(jax.jit(jax.grad(value))(params["adapters"]))
    moved = np.asarray(gradient["h/task_embedding"]).any(axis=1)
    assert moved.tolist() == [True, False, True]
    for path, x in gradient.items():
        assert np.asarray(x).any(), path
    assert not any(path.startswith("model/") for path in flatten(params) if made.trains(path))


def test_lines():
    line = "h = hyper(tasks=3, embedding=4, hidden=6, reduction=4.0)"
    assert parse_module(line) == H
    assert parse_module(write_module(H)) == H
    assert str(SEVERAL[0]) == "MultiTask(Task(h, of=2), Task(h), None)"
    assert parse_trees(str(SEVERAL[0])) == SEVERAL


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (
            "h",
            r"h is a hypernetwork of 3 tasks; select a task .* such as Task\(h, of=0\)",
        ),
        ("Stack(h)", r"Stack > h is a hypernetwork of 3 tasks"),
        ("Task(h, of=3)", r"Task\(h, of=3\): h has tasks 0 to 2"),
        ("Task(h), Task(a)", r"Task\(a\): a is not a hypernetwork"),
    ],
)
def test_trees_that_cannot_be(use, message):
    from t5x_lite.adapters.lora import Lora

    modules = (H, Lora(name="a", rank=2)) if "a)" in use else (H,)
    with pytest.raises(InputError, match=message):
        learner("bert", *modules, use=parse_trees(use))


def test_configs_that_cannot_be():
    for text in ("Task(Stack(h))", "Task(h, h)", "Task(None)"):
        with pytest.raises(InputError, match=r"one child, the name|does not support None"):
            parse_trees(text)
    with pytest.raises(InputError, match="of must be at least 0: got -1"):
        parse_trees("Task(h, of=-1)")
    with pytest.raises(
        InputError, match="the same width in all layers, and does not support trained"
    ):
        hyper(ln_before=True)
    with pytest.raises(InputError, match="embedding must be at least 1"):
        dataclasses.replace(H, embedding=0)
    with pytest.raises(InputError, match="h cannot be multiplied by 2"):
        H.scaled({}, 2)
