"""Training in phases: what is chosen, what is rewound, and resuming bit for bit across phases."""

import dataclasses
import shutil
from typing import Any

import numpy as np
import pytest

from t5x_lite.adapters.config import Adapters
from t5x_lite.adapters.delta_parts import Sparse
from t5x_lite.checkpoints import reading as checkpointing
from t5x_lite.checkpoints.init import Init
from t5x_lite.config import Checkpoints
from t5x_lite.core import trees
from t5x_lite.core.errors import InputError, Interrupted
from t5x_lite.inference import delta_files
from t5x_lite.inference.loading import read_experiment
from t5x_lite.optim.config import AdamW, Constant
from t5x_lite.train import phases
from t5x_lite.train.training import train
from tests.arrays import assert_equal_arrays

pytestmark = pytest.mark.slow

LOTTERY = "a = sparse(density=0.01, rounds=2, full_steps=2, sparse_steps=2, l1=0.1)"


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny_run, tiny_experiment, compile_once):
    """Trains a module in phases on the tiny run's base; AdamW's decay is on."""
    place = tmp_path_factory.mktemp("phases")

    def run(name, line, **changes):
        experiment = dataclasses.replace(
            tiny_experiment,
            workdir=str(place / name),
            steps=4,
            checkpoints=Checkpoints(period=2),
            evaluation=dataclasses.replace(tiny_experiment.evaluation, period=100),
            **{
                "init": Init(checkpoint=str(tiny_run)),
                "adapters": Adapters(add=(line,) if line else ()),
                "optimizer": AdamW(schedule=Constant(value=0.01), weight_decay=0.3),
                **changes,
            },
        )
        train(experiment)
        return place / name

    return run


@pytest.fixture(scope="module")
def lottery(run):
    return run("lottery", LOTTERY)


def arrays(workdir, step=4):
    found = checkpointing.lazy_params(workdir / "checkpoints" / str(step))
    return {path: array.read() for path, array in found.items()}


def total(workdir):
    model = {p: x for p, x in arrays(workdir).items() if p.startswith("model/")}
    return sum(x.size for x in model.values())


@pytest.mark.exhaustive
def test_exactly_k_entries_and_nothing_else_moved(lottery):
    """Two rounds choose K / 2 each, by how far entries moved; ties never make more than K."""
    names = {path.name for path in (lottery / "phases").iterdir()}
    assert names == {"full_1", "sparse_1", "full_2"}
    delta: Any = delta_files.load(lottery)
    assert {type(part) for part in delta.parts.values()} == {Sparse}
    k = round(0.01 * total(lottery))
    assert sum(part.values.size for part in delta.parts.values()) == k
    base = {p: x for p, x in arrays(lottery).items() if p.startswith("model/")}
    tuned = trees.flatten(delta.apply(trees.unflatten(base)))
    for path, leaf in base.items():
        moved = np.flatnonzero(np.ravel(tuned[path]) != np.ravel(leaf))
        places = delta.parts[path].indices if path in delta.parts else []
        assert set(moved) <= set(np.asarray(places).tolist()), path
    first = arrays(lottery / "phases" / "sparse_1", 2)
    early = {p: x for p, x in first.items() if p.endswith("/indices")}
    assert sum(x.size for x in early.values()) == round(k / 2)
    full = arrays(lottery / "phases" / "full_1", 2)
    scores = {p: np.abs(x) for p, x in full.items() if p.startswith("adapters/a/")}
    limit = np.sort(np.concatenate([x.ravel() for x in scores.values()]))[-round(k / 2)]
    for path, indices in early.items():
        array = path.removesuffix("/indices")
        assert np.all(scores[array].ravel()[indices] >= limit)
        late = arrays(lottery)[path]
        assert set(indices) < set(late) or set(indices) == set(late)


@pytest.mark.exhaustive
@pytest.mark.parametrize("removed", ["phases/sparse_1/checkpoints/2", "checkpoints/4"])
def test_a_run_that_was_killed_goes_on_bit_for_bit(lottery, run, removed):
    """In a phase, or in the last one: as if the later checkpoints were not made yet."""
    name = f"killed_{removed.count('/')}"
    copy = lottery.parent / name
    shutil.copytree(lottery, copy)
    shutil.rmtree(copy / removed)
    if removed.startswith("phases"):
        shutil.rmtree(copy / "phases" / "full_2")
        shutil.rmtree(copy / "checkpoints")
        (copy / "config.json").unlink()
        for path in copy.iterdir():
            if path.name != "phases":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    run(name, LOTTERY)
    assert_equal_arrays(arrays(copy), arrays(lottery))


def test_what_a_phase_needs(lottery, run, monkeypatch):
    """The finished run needs no phase; another density is another experiment."""
    hidden = (lottery / "phases").rename(lottery.parent / "hidden")
    try:
        run("lottery", LOTTERY)
        with pytest.raises(InputError, match="adapters"):
            run("lottery", LOTTERY.replace("0.01", "0.02"))
    finally:
        hidden.rename(lottery / "phases")
    with pytest.raises(InputError, match="a, b all train in phases, but a run supports one"):
        run("two", "a = sparse()", adapters=Adapters(add=("a = sparse()", "b = prune()")))

    def stopped(experiment, start):
        raise Interrupted(2, 0)

    monkeypatch.setattr(phases, "choose", lambda *a, **k: pytest.fail("nothing is chosen yet"))
    saved = read_experiment(lottery, {"config.json": (lottery / "config.json").read_bytes()})
    fresh = dataclasses.replace(
        saved, workdir=str(lottery.parent / "x"), adapters=Adapters(add=(LOTTERY,))
    )
    with pytest.raises(Interrupted):
        phases.prepared(fresh, stopped)


@pytest.mark.exhaustive
@pytest.mark.parametrize("select", ["magnitude", "random", "fisher"])
def test_scores_that_need_no_training(run, select):
    line = f"a = sparse(density=0.02, select={select!r}, scope='per_tensor', examples=2)"
    workdir = run(select, line)
    assert not (workdir / "phases").exists()
    held = arrays(workdir)
    for path, indices in held.items():
        if not path.endswith("/indices"):
            continue
        base = held[f"model/{path.removeprefix('adapters/a/').removesuffix('/indices')}"]
        assert indices.size == round(0.02 * base.size)
        if select == "magnitude":
            order = np.argsort(-np.abs(base.ravel()), kind="stable")[: indices.size]
            np.testing.assert_array_equal(indices, np.sort(order))


@pytest.mark.exhaustive
@pytest.mark.parametrize("select", ["magnitude", "fisher"])
def test_scores_are_of_the_model_with_what_is_loaded(run, lottery, select):
    """A language's difference is in the model whose weights and gradients choose the places."""
    line = f"b = sparse(density=0.02, select={select!r}, scope='per_tensor', examples=2)"
    both = Adapters(add=(line,), load=(f"a={lottery}",))
    alone, beside = run(f"alone_{select}", line), run(f"beside_{select}", "", adapters=both)

    def places(workdir):
        held = arrays(workdir).items()
        return {p.split("/", 2)[2]: x for p, x in held if p[:11] == "adapters/b/" and "indic" in p}

    assert any(not np.array_equal(x, places(alone).get(p)) for p, x in places(beside).items())
    if select == "magnitude":
        base = {p: x for p, x in arrays(lottery).items() if p.startswith("model/")}
        moved = trees.flatten(delta_files.load(lottery).apply(trees.unflatten(base)))
        for path, x in places(beside).items():
            sizes = np.abs(np.ravel(moved[f"model/{path.removesuffix('/indices')}"]))
            assert sizes[x].min() >= np.sort(sizes)[-x.size]


@pytest.mark.exhaustive
def test_diff_pruning_finishes_with_its_own_values_beside_what_is_loaded(run, lottery):
    """At a rate of 0 the gates' product stays 0 times its start, whatever is loaded."""
    line = "b = diff(density=0.01, relaxed_steps=1)"
    own = run("diff_alone", line, optimizer=AdamW(schedule=Constant(value=0.0), weight_decay=0.0))
    beside = run(
        "diff_beside",
        "",
        adapters=Adapters(add=(line,), load=(f"a={lottery}",)),
        optimizer=AdamW(schedule=Constant(value=0.0), weight_decay=0.0),
    )
    values = [
        {p: x for p, x in arrays(workdir).items() if p.startswith("adapters/b/")}
        for workdir in (own, beside)
    ]
    assert_equal_arrays(*values)


def test_targets_that_name_nothing(run):
    with pytest.raises(InputError, match="adapter 'a': the pattern 'nosuch' matches no parameter"):
        run("nothing", "a = sparse(targets=('nosuch',), full_steps=1)")


@pytest.mark.exhaustive
def test_diff_pruning_finishes_with_k_values(run):
    line = "a = diff(density=0.01, relaxed_steps=2, penalty=1e-6, alpha_rate=10)"
    workdir = run("diff", line)
    relaxed = delta_files.load(workdir / "phases" / "relaxed")
    delta: Any = delta_files.load(workdir)
    assert sum(part.values.size for part in delta.parts.values()) == round(0.01 * total(workdir))
    chosen = np.concatenate(
        [np.abs(relaxed.parts[p].dense().ravel()[x.indices]) for p, x in delta.parts.items()]
    )
    everything = np.concatenate([np.abs(x.dense().ravel()) for x in relaxed.parts.values()])
    np.testing.assert_array_equal(np.sort(chosen), np.sort(everything)[-chosen.size :])


@pytest.mark.exhaustive
def test_pruning_rewinds_and_drops_in_rounds(run):
    line = "a = prune(density=0.25, rounds=2, rewind_step=1, train_steps=2)"
    workdir = run("prune", line)
    names = {path.name for path in (workdir / "phases").iterdir()}
    assert names == {"rewind", "train_1", "train_2"}
    held, before = arrays(workdir), arrays(workdir / "phases" / "train_2", 2)
    sizes = kept = half = 0
    for path, bits in held.items():
        if path.endswith("/bits"):
            own, earlier = (np.unpackbits(x) for x in (bits, before[path]))
            assert not np.any(own & ~earlier & 1)  # what was dropped does not come back
            sizes += held[path.replace("bits", "difference")].size
            kept, half = kept + own.sum(), half + earlier.sum()
    assert (kept, half) == (round(0.25 * sizes), round(0.5 * sizes))
    merged = delta_files.load(workdir)
    base = trees.unflatten({p: x for p, x in held.items() if p.startswith("model/")})
    tuned = trees.flatten(merged.apply(base))
    assert sum(np.count_nonzero(tuned[path]) for path in merged.parts) == kept
    first = arrays(workdir / "phases" / "rewind", 1)
    assert any(np.any(x) for path, x in first.items() if path.startswith("adapters/"))


def test_movement_ends_with_its_share_and_knows_the_steps(run):
    workdir = run("movement", "a = movement(density=0.3, cooldown=1)", init=Init())
    assert float(arrays(workdir)["adapters/a/share/kept"]) == pytest.approx(0.3)
    assert 0.3 < float(arrays(workdir, 2)["adapters/a/share/kept"]) < 1
    assert "steps=4" in (workdir / "config.json").read_text()
