"""Runs that freeze their base: small checkpoints, resuming, a base that moves or is another one."""

import dataclasses
import re
import shutil

import numpy as np
import pytest

from t5x_lite import config
from t5x_lite.adapters.config import Adapters
from t5x_lite.checkpoints import items
from t5x_lite.checkpoints.init import BASE_FILE, Base, Init
from t5x_lite.checkpoints.reading import step_files
from t5x_lite.commands.weights import export_adapter, export_hf
from t5x_lite.config import Checkpoints
from t5x_lite.core import trees
from t5x_lite.core.errors import InputError
from t5x_lite.inference.loading import Loaded, learner_of
from t5x_lite.interop.tensor_files import read_safetensors
from t5x_lite.train.training import train
from tests.arrays import assert_equal_arrays

pytestmark = pytest.mark.slow

LORA = Adapters(add=('lora = lora(r=2, sites=("attention/.*", "mlp/.*"))',))


@pytest.fixture(scope="module")
def place(tmp_path_factory, tiny_run):
    """A directory with the base at "t5"."""
    directory = tmp_path_factory.mktemp("trained_part")
    shutil.copytree(tiny_run, directory / "t5")
    return directory


@pytest.fixture(scope="module")
def run(place, tiny_experiment, compile_once):
    """Trains from the base to a step, or to one after the other as a run that is resumed."""

    def run(name, *ends, start="t5", **changes):
        options = {"adapters": LORA, "checkpoints": Checkpoints(period=5), **changes}
        experiment = dataclasses.replace(
            tiny_experiment,
            workdir=str(place / name),
            init=Init(checkpoint=str(place / start)),
            **options,
        )
        for end in ends:
            train(dataclasses.replace(experiment, steps=end))
        return place / name

    return run


@pytest.fixture(scope="module")
def part(run):
    return run("part", 5, 10)


def saved(step):
    return {*items.saved_leaves(step / "params")}


def params(directory):
    return trees.flatten(Loaded.from_checkpoint(str(directory), step=None).params)


def test_the_trained_part_alone_is_saved_and_resumed(part, run):
    whole = run("whole", 10, checkpoints=Checkpoints(period=5, whole=True))
    assert_equal_arrays(params(part), params(whole))
    steps = [directory / "checkpoints" / "10" for directory in (part, whole)]
    assert all(path.startswith("adapters/lora/") for path in saved(steps[0]))
    assert {path.split("/")[0] for path in saved(steps[1])} == {"model", "adapters"}
    assert [(step / "files" / BASE_FILE).exists() for step in steps] == [True, False]


@pytest.mark.exhaustive
def test_a_chosen_part_and_a_base_with_a_base(part, run, place):
    second = run("second", 5, adapters=Adapters(), train=("model/decoder",), start="part")
    step = second / "checkpoints" / "5"
    assert all(path.startswith("model/decoder/") for path in saved(step))
    base, ours = params(place / "t5"), params(second)
    for path, leaf in ours.items():
        moved = np.any(np.asarray(leaf) != np.asarray(base[path]))
        assert moved == path.startswith("model/decoder/"), path
    third = run("third", 5, adapters=Adapters(add=("parallel = par_bn()",)), start="second")
    assert_equal_arrays(
        {p: leaf for p, leaf in params(third).items() if p.startswith("model/")}, ours
    )
    export_hf(second, place / "exported")
    found = read_safetensors(place / "exported" / "model.safetensors")
    np.testing.assert_array_equal(found["shared.weight"], base["model/token_embedding/table"])
    with pytest.raises(InputError, match=r"after_mlp cannot be merged into the model's kernels$"):
        export_hf(third, place / "third_exported")
    assert not (place / "third_exported").exists()


def test_the_tree_may_move_as_a_whole(part, place, tmp_path):
    for name in ("t5", "part"):
        shutil.copytree(place / name, tmp_path / "moved" / name)
    hidden = (place / "t5").rename(place / "hidden")
    try:
        assert_equal_arrays(params(tmp_path / "moved" / "part"), params_of(part, hidden))
    finally:
        hidden.rename(place / "t5")


def params_of(part, base):
    """The parameters by a link to the base."""
    (part / "base").symlink_to(base / "checkpoints" / "10")
    try:
        return params(part)
    finally:
        (part / "base").unlink()


def test_a_base_that_is_gone_or_another_one(part, place, tmp_path):
    alone = shutil.copytree(part, tmp_path / "a" / "b" / "c" / "part")
    hidden = (place / "t5").rename(place / "hidden")
    try:
        with pytest.raises(
            InputError, match=r"holds only the trained parameters, but its base checkpoint .*/10 is"
        ):
            params(alone)
        (alone / "base").mkdir()  # nothing that could be meant
        with pytest.raises(InputError, match=r"holds only the trained parameters"):
            params(alone)
        (alone / "base").rmdir()
        (alone / "base").symlink_to(hidden)
        assert params(alone)
        (alone / "base").unlink()
        (alone / "base").symlink_to(hidden / "checkpoints" / "5")
        with pytest.raises(
            InputError, match=r"base is not the base of .* values of model/\S+ differ; use the"
        ):
            params(alone)
        (alone / "checkpoints" / "base").symlink_to(hidden / "checkpoints" / "10")
        assert params(alone)  # the first that fits
        (alone / "checkpoints" / "base").unlink()
        (alone / "base").unlink()
        (alone / "base").symlink_to(alone / "checkpoints" / "10")
        with pytest.raises(InputError, match="is its own base"):
            params(alone)
        (alone / "base").unlink()
        broken = shutil.copytree(hidden, alone / "base")
        largest = max(
            (p for p in (broken / "checkpoints" / "10" / "params").rglob("*") if p.is_file()),
            key=lambda path: path.stat().st_size,
        )
        largest.write_bytes(largest.read_bytes()[:-1])
        with pytest.raises(InputError, match=r"base/checkpoints/10 is damaged"):
            params(alone)
    finally:
        hidden.rename(place / "t5")


def test_a_run_goes_on_only_with_its_base(part, place, tmp_path, tiny_experiment):
    experiment = dataclasses.replace(
        tiny_experiment,
        workdir=str(shutil.copytree(part, tmp_path / "x" / "y" / "z" / "part")),
        init=Init(checkpoint=str(place / "t5")),
        adapters=LORA,
        steps=12,
    )
    hidden = (place / "t5").rename(place / "hidden")
    try:
        with pytest.raises(InputError, match="holds only the trained parameters"):
            train(experiment)
    finally:
        hidden.rename(place / "t5")


def test_export_merges(part, tmp_path):
    export_hf(part, tmp_path / "merged")
    loaded = Loaded.from_checkpoint(str(part), step=None)
    merged = trees.flatten(loaded.learner.merged(loaded.params))
    found = read_safetensors(tmp_path / "merged" / "model.safetensors")
    [path] = [path for path in merged if re.fullmatch("encoder/.*attention/query/kernel", path)]
    ours = np.asarray(merged[path][0])
    theirs = found["encoder.block.0.layer.0.SelfAttention.q.weight"]
    np.testing.assert_array_equal(ours.reshape(ours.shape[0], -1).T, theirs)
    base = trees.flatten(loaded.params)[f"model/{path}"][0]
    assert np.abs(np.asarray(base) - ours).max() > 1e-4


def test_an_exported_adapter_has_a_card(part, place, tmp_path):
    export_adapter(part, tmp_path / "peft")
    card = (tmp_path / "peft" / "README.md").read_text()
    for line in (
        'library_name: "peft"',
        "# part",
        f"| Base model | `{place / 't5'}",
        "| Steps | 10 of 10 |",
        f"    {LORA.add[0]}",
        "## Metrics at step 10",
        "| validation/loss | ",
    ):
        assert line in card, card


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_a_narrow_base_is_the_same_base(dtype, part, run, place, caplog):
    adapters = dataclasses.replace(LORA, base_dtype=dtype)
    with caplog.at_level("INFO"):
        narrow = run(dtype, 5, 10, adapters=adapters)
    bases = [Base.read(step_files(run / "checkpoints" / "10"), where=run) for run in (narrow, part)]
    assert bases[0].digest == bases[1].digest
    assert saved(narrow / "checkpoints" / "10") == saved(part / "checkpoints" / "10")
    ours, theirs = params(narrow), params(part)
    modules = [leaf for path, leaf in ours.items() if path.startswith("adapters/")]
    num, total = (sum(leaf.size for leaf in leaves) for leaves in (modules, ours.values()))
    told = (
        f"trained {num:,} of {total:,} ({100 * num / total:.2f} %), base {bases[0].digest[:12]}, "
        f"{4 * num:,} bytes of parameters in a checkpoint"
    )
    assert told in caplog.text
    assert_equal_arrays(
        *({p: a for p, a in each.items() if p.startswith("model/")} for each in (ours, theirs))
    )
    shapes = trees.flatten(learner_of(config.load(narrow / "config.json")).shapes)
    assert {x.dtype.name for p, x in shapes.items() if p.endswith("/query/kernel")} == {dtype}
    assert {x.dtype for p, x in shapes.items() if p.startswith("adapters/")} == {
        np.dtype("float32")
    }
    assert all(np.any(leaf) for path, leaf in ours.items() if path.endswith("/b"))
    export_hf(narrow, place / f"{dtype}_exported")
    found = read_safetensors(place / f"{dtype}_exported" / "model.safetensors")
    np.testing.assert_array_equal(found["shared.weight"], theirs["model/token_embedding/table"])
