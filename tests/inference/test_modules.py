"""Modules that were trained: loaded into another run, and several in one process."""

import dataclasses
import json
import logging
import shutil

import numpy as np
import pytest

import t5x_lite
from t5x_lite.adapters.config import Adapters
from t5x_lite.checkpoints import items
from t5x_lite.checkpoints.init import Init
from t5x_lite.commands.answers import score
from t5x_lite.commands.deltas import merge
from t5x_lite.config import Checkpoints
from t5x_lite.core import trees
from t5x_lite.core.errors import InputError
from t5x_lite.core.option_types import Modules, RowModules
from t5x_lite.inference.checkpoint import Checkpoint
from t5x_lite.inference.loading import Loaded, ModulesOf, learner_of
from t5x_lite.train.measuring import evaluate
from t5x_lite.train.training import train
from tests.arrays import assert_equal_arrays

pytestmark = pytest.mark.slow

LORA = Adapters(add=("lora = lora(r=2)",))


@pytest.fixture(scope="module")
def place(tmp_path_factory, tiny_run):
    """A directory with the base at "t5"."""
    directory = tmp_path_factory.mktemp("modules")
    shutil.copytree(tiny_run, directory / "t5")
    return directory


@pytest.fixture(scope="module")
def run(place, tiny_experiment, compile_once):
    """Trains modules on the base to a step."""

    def run(name, end, start="t5", **changes):
        experiment = dataclasses.replace(
            tiny_experiment,
            workdir=str(place / name),
            steps=end,
            **{
                "init": Init(checkpoint=str(place / start)),
                "checkpoints": Checkpoints(period=5),
                **changes,
            },
        )
        train(experiment)
        return place / name

    return run


@pytest.fixture(scope="module")
def part(run):
    return run("part", 5, adapters=LORA)


def saved(step):
    return {*items.saved_leaves(step / "params")}


def params(directory):
    return trees.flatten(Loaded.from_checkpoint(str(directory), step=None).params)


def test_pissa_with_dropout_resumes_exactly(run, place):
    """The start is computed once, from the weights of --init, and is saved with A and B."""
    adapters = Adapters(add=("lora = lora(r=2, init='pissa', dropout=0.2)",))
    once = params(run("once", 4, adapters=adapters))
    first = params(run("pissa", 2, adapters=adapters))
    twice = params(run("pissa", 4, adapters=adapters))
    assert_equal_arrays(twice, once)
    stem, base = "adapters/lora/encoder/attention/query/", params(place / "t5")
    kernel = base["model/encoder/layers/attention/query/kernel"]
    start = np.asarray(once[stem + "start_a"] @ once[stem + "start_b"])
    values = np.linalg.svd(kernel - 4.0 * start, compute_uv=False)
    expected = np.linalg.svd(kernel, compute_uv=False)[:, 2:]
    np.testing.assert_allclose(values[:, :-2], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(first[stem + "start_a"], once[stem + "start_a"])
    assert np.abs(first[stem + "a"] - once[stem + "a"]).max() > 1e-5
    assert not any(
        name.startswith("model/") for name in saved(place / "pissa" / "checkpoints" / "4")
    )


@pytest.mark.exhaustive
def test_a_loaded_module_stays_as_it_was(part, run, place, tiny_experiment):
    """Beside a new one that trains; the run goes on though the module's directory is gone."""
    adapters = Adapters(add=("b = par_bn()",), load=(f"old={part}",))
    both = run("both", 5, adapters=adapters)
    hidden = part.rename(place / "hidden_part")
    try:
        run("both", 7, adapters=adapters)
        ours = params(both)
    finally:
        hidden.rename(part)
    assert {path.split("/")[1] for path in saved(both / "checkpoints" / "7")} == {"b", "old"}
    old = {p.replace("lora/", "old/", 1): leaf for p, leaf in params(part).items()}
    assert_equal_arrays({p: leaf for p, leaf in ours.items() if "/b/" not in p}, old)
    assert all(np.any(leaf) for path, leaf in ours.items() if "/b/up/kernel" in path)
    with pytest.raises(
        InputError,
        match=r"lora of .* with another base model, .*: the digest of the array model/\S+ is",
    ):
        run("other", 5, adapters=adapters, start="t5/checkpoints/5")
    data = dataclasses.replace(tiny_experiment.data, directory="nowhere")
    with pytest.raises(
        InputError, match=r"adapters.load requires the base model of the loaded adapters"
    ):
        run("no_base", 5, adapters=adapters, init=Init(), data=data)


@pytest.mark.exhaustive
def test_two_at_one_site_and_nothing_that_trains(part, run):
    adapters = Adapters(add=("b = lora(r=2)",), load=(f"old={part}",))
    with pytest.raises(InputError, match=r"remove one of them from --adapters.use"):
        run("twice", 5, adapters=adapters)
    with pytest.raises(InputError, match="all parameters are frozen, so nothing would be trained"):
        run("frozen", 5, adapters=Adapters(load=(f"old={part}",)))
    two = run("two", 1, adapters=Adapters(add=("a = par_bn()", "b = lora()")))
    with pytest.raises(InputError, match=r"has no adapter x; its adapters are a, b"):
        run("unknown", 5, adapters=Adapters(load=(f"x={two}",)))


@pytest.mark.exhaustive
def test_modules_of_one_base_in_one_process(part, run, place, tmp_path):
    """Each answers as its own checkpoint does, and without one the base answers."""
    other = run("style", 5, adapters=Adapters(add=("style = par_bn()",)))
    pairs = [("a moving film", "positive"), ("no", "negative")]
    alone = {str(d): t5x_lite.load(d).score(pairs) for d in (part, other, place / "t5")}
    model = t5x_lite.load(place / "t5")
    model.add_adapter("rte", part)
    model.add_adapter("style", other)
    assert model.adapters == ("rte", "style")
    for name, directory in (("rte", part), ("style", other), ("", place / "t5"), ("rte", part)):
        model.use(name)
        np.testing.assert_allclose(model.score(pairs), alone[str(directory)], rtol=1e-6)
        assert model.generate(["a film"]) == t5x_lite.load(directory).generate(["a film"])
    model.use("rte, style")
    assert np.abs(np.subtract(model.score(pairs), alone[str(part)])).max() > 1e-6
    own = t5x_lite.load(part)
    own.add_adapter("style", other)
    own.use("style")
    np.testing.assert_allclose(own.score(pairs), alone[str(other)], rtol=1e-6)
    for use, message in {
        "rtee": "no adapter has the name 'rtee'; did you mean rte",
        "Fuse(rte, style)": "has no trained fusion named rte_style; .* has none; train",
    }.items():
        with pytest.raises(InputError, match=message):
            model.use(use)
    with pytest.raises(InputError, match="two adapters have the name rte"):
        model.add_adapter("rte", part)
    foreign = t5x_lite.load(place / "t5" / "checkpoints" / "5")
    with pytest.raises(InputError, match="was trained with another base"):
        foreign.add_adapter("rte", part)
    moved = shutil.copytree(part, tmp_path / "a" / "b" / "c" / "part")
    hidden = (place / "t5").rename(place / "hidden")
    try:
        found = t5x_lite.load(moved, base=hidden).score(pairs)
        with pytest.raises(InputError, match=r"base .*nowhere: no such directory"):
            t5x_lite.load(moved, base=tmp_path / "nowhere")
        with pytest.raises(InputError, match="holds only the trained parameters"):
            t5x_lite.load(moved)
    finally:
        hidden.rename(place / "t5")
    np.testing.assert_allclose(found, alone[str(part)], rtol=1e-6)


def test_modules_in_use_of_a_checkpoint(run, part, place, tiny_experiment, tmp_path, caplog):
    """As `--adapters.use` says, in each command: alone a module answers as one that was alone."""
    with caplog.at_level(logging.INFO):
        both = run("pair", 5, adapters=Adapters(add=("b = par_bn()",), load=(f"a={part}",)))
    assert f"init: adapters/b is newly initialized; adapters/a comes from {part}" in caplog.text
    source = tmp_path / "pairs.jsonl"
    source.write_text('{"inputs": "a moving film", "targets": "good"}\n')

    def scored(directory, use=None):
        files = {"input": str(source), "output": str(tmp_path / "out")}
        score([str(directory)], adapters=RowModules(use=use), **files)
        return json.loads((tmp_path / "out").read_text())["log_likelihood"]

    assert scored(both, "a") == pytest.approx(scored(part), abs=1e-5)
    assert scored(both, "") == pytest.approx(scored(place / "t5"), abs=1e-5)
    assert scored(both, "b, a") == scored(both) != scored(both, "b")
    merge(str(both), str(tmp_path / "merged"), adapters=Modules(use="a"))
    assert scored(tmp_path / "merged") == pytest.approx(scored(part), abs=1e-5)
    with pytest.raises(InputError, match="no adapter has the name 'bb'; did you mean b"):
        merge(str(both), str(tmp_path / "none"), adapters=Modules(use="bb"))
    pair = [("a moving film", "good")]
    chosen = t5x_lite.load(both, use="a")
    assert chosen.score(pair) == pytest.approx(t5x_lite.load(part).score(pair), abs=1e-5)
    encoder = Checkpoint.load([str(both)], use="a").encoder()
    assert [each.name for each in encoder.loaded.learner.adapters] == ["a"]
    with pytest.raises(
        InputError,
        match=r"adapters.use: checkpoint \S+: no adapter has the name 'bb'; did you mean b\?; ",
    ):
        scored(both, "bb")
    by_config = dataclasses.replace(
        tiny_experiment, adapters=Adapters(load=(f"a={part}", "b=gone"), use="a")
    )
    losses = {
        use: evaluate(by_config, [str(both)], use=use)["validation/loss"]
        for use in (None, "a", "b, a")
    }
    assert losses[None] == losses["a"] != losses["b, a"]
    with pytest.raises(InputError, match=r"no adapter has the name 'a'; there are no adapters"):
        evaluate(by_config, [str(place / "t5")])


@pytest.mark.exhaustive
def test_a_module_that_trained_with_its_base(part, run, place):
    """Its base is that of no other run; a base that was saved whole is compared, too."""
    norms = run("norms", 1, adapters=Adapters(add=("t = t5_adapter(d=2)",)))
    load = Adapters(add=("b = lora(r=2)",), load=(f"t={norms}",))
    message = (
        r"adapter t of \S+ was trained together with the array model/\S+norm/scale of its base"
    )
    with pytest.raises(InputError, match=message):
        run("with_norms", 1, adapters=load)
    with pytest.raises(InputError, match=message):
        t5x_lite.load(place / "t5").add_adapter("t", norms)
    own = t5x_lite.load(norms)
    own.use("t")
    with pytest.raises(
        InputError,
        match=r"norm/scale of the base model was trained together with the adapters t, so",
    ):
        own.use("")
    whole = run("whole", 1, adapters=LORA, checkpoints=Checkpoints(period=5, whole=True))
    t5x_lite.load(place / "t5").add_adapter("lora", whole)
    with pytest.raises(
        InputError,
        match=r"another base model, the base of its checkpoint: the digest of the array model/",
    ):
        t5x_lite.load(place / "t5" / "checkpoints" / "5").add_adapter("lora", whole)
    with pytest.raises(
        InputError, match=r"adapters\.add and adapters.load define different adapters"
    ):
        run("both_names", 1, adapters=Adapters(add=("lora = par_bn()",), load=(f"lora={part}",)))


def test_modules_without_arrays(place):
    loaded = Loaded.from_checkpoint(str(place / "t5"), step=None)
    norms = dataclasses.replace(loaded.experiment, adapters=Adapters(add=("n = norms()",)))
    made = ModulesOf.of(dataclasses.replace(loaded, experiment=norms, learner=learner_of(norms)))
    assert made.arrays == {}
    assert "adapters" not in made.using(("n",)).params
    with pytest.raises(InputError, match="trained together with the adapters n, so other adapters"):
        made.using(())
