"""Directories that the library `adapters` 1.3 saved: read, run as there, and written again."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.adapters.composition import Average, Drop, Fuse, Split, Stack
from t5x_lite.adapters.grammar import parse_trees
from t5x_lite.checkpoints.items import lazy_params
from t5x_lite.commands.weights import export_adapter, import_adapter, import_hf
from t5x_lite.core.errors import InputError
from t5x_lite.inference.loading import Loaded
from t5x_lite.interop.adapters_setups import _written, read_setup
from t5x_lite.interop.tensor_files import read_torch
from tests.adapters.test_goldens import GOLDEN
from tests.interop.test_adapters_library import write_tensors

CASES = ("setup", "rows", "flat", "mam")
USE = {
    "setup": (Stack(("before", Fuse(("first_task", "other")))),),
    "rows": ("rows",),
    "flat": ("flat",),
    "mam": ("mam",),
}


@pytest.fixture(scope="module")
def golden():
    with np.load(GOLDEN / "directories.npz") as file:
        return {name: file[name] for name in file.files}


@pytest.fixture(scope="module")
def base(tmp_path_factory, golden):
    """The library's model here, without modules."""
    directory = tmp_path_factory.mktemp("base")
    theirs = directory / "theirs"
    theirs.mkdir()
    (theirs / "config.json").write_text(str(golden["config"]))
    own = {k.removeprefix("base/"): x for k, x in golden.items() if k.startswith("base/")}
    write_tensors(theirs / "model.safetensors", own)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijk"]
    (theirs / "vocab.txt").write_text("\n".join(words) + "\n")
    import_hf(theirs, directory / "ours")
    return directory / "ours"


def saved(golden, name, directory):
    """The library's directory of a case."""
    start = f"file/{name}/"
    for key, content in golden.items():
        if key.startswith(start):
            path = directory / key.removeprefix(start)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.tobytes())
    return directory


def given(directory, ids):
    """What the head says."""
    loaded = Loaded.from_checkpoint(str(directory), step=None)
    [head] = (name for name in loaded.learner.heads if name not in loaded.learner.frozen_heads)

    def run(params):
        bound = loaded.learner.bind(params)
        found = bound.heads[head](bound.model(ids))
        return jnp.stack(found, -1) if isinstance(found, tuple) else found

    return np.asarray(jax.jit(run)(loaded.params)), loaded


def tensors_in(directory):
    """All tensors below a directory, by file and name without the model's prefix."""
    found = {}
    for path in directory.rglob("*.bin"):
        for name, array in read_torch(path).items():
            short = name.removeprefix("bert.")
            if ".pool." not in short:  # a prefix, again, in each layer
                found[str(path.relative_to(directory)).lower(), short.lower()] = np.asarray(array)
    return found


@pytest.mark.parametrize("name", CASES)
def test_what_the_library_saved_runs_here_and_is_written_again(golden, base, name, tmp_path):
    source = saved(golden, name, tmp_path / "theirs")
    import_adapter(source, tmp_path / "ours", base=base, name=name)
    found, loaded = given(tmp_path / "ours", jnp.asarray(golden["ids"]))
    wanted = golden[f"out/{name}"]
    wanted = wanted[:, 3:] if name == "rows" else wanted  # of the tokens behind a prompt
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    assert loaded.learner.use == USE[name] or loaded.learner.use == ()
    export_adapter(tmp_path / "ours", tmp_path / "back", format="adapters")
    if name == "rows":  # which the library saved as safetensors
        rows = golden["file/rows/adapter.safetensors"].tobytes()[-96:]
        [written] = [x for (_, k), x in tensors_in(tmp_path / "back").items() if "prompt" in k]
        np.testing.assert_array_equal(written.ravel(), np.frombuffer(rows, np.float32))
    else:
        back, theirs = tensors_in(tmp_path / "back"), tensors_in(source)
        renamed = {(f.replace("-", "_"), k.replace("-", "_")): x for (f, k), x in theirs.items()}
        assert back.keys() == renamed.keys()
        for key, array in back.items():
            np.testing.assert_array_equal(array, renamed[key], err_msg=str(key))
    head = next((tmp_path / "back").rglob("head_config.json"))
    said = json.loads(next(source.rglob("head_config.json")).read_text())["config"]
    assert (
        json.loads(head.read_text())["config"] == {"bias": True, **said}
        or said == json.loads(head.read_text())["config"]
    )
    import_adapter(tmp_path / "back", tmp_path / "again", base=base, name=name)
    ours, again = (lazy_params(tmp_path / which / "params") for which in ("ours", "again"))
    assert ours.keys() == again.keys()
    for path in ours:
        np.testing.assert_array_equal(ours[path].read(), again[path].read())


def test_damaged_and_missing_parts_of_a_composition(golden, base, tmp_path):
    source = saved(golden, "setup", tmp_path / "theirs")
    fusion = source / "first-Task,other" / "adapter_fusion_config.json"
    config = json.loads(fusion.read_text())
    config["config"]["temperature"] = True
    fusion.write_text(json.dumps(config))
    with pytest.raises(InputError, match="temperature True of an adapter fusion is not supported"):
        read_setup(source)
    shutil.rmtree(fusion.parent)
    with pytest.raises(InputError, match=r"contains no adapter_fusion_config.json, which"):
        read_setup(source)
    shutil.rmtree(source / "other")
    with pytest.raises(InputError, match=r"other: contains no adapter_config.json"):
        read_setup(source)
    assert not (tmp_path / "ours").exists()
    for wrong, match in (
        ({"type": "Sum", "children": []}, "block type 'Sum' is not supported, only Stack, Fuse"),
        ([], "must have a type and children"),
        (
            {"type": "Average", "children": [], "kwargs": {"other": 1}},
            "the options other of the block Average are not supported",
        ),
        (
            {"type": "Stack", "children": [], "kwargs": [1]},
            "kwargs of the block Stack must be an object",
        ),
        (
            {"type": "Split", "children": [], "kwargs": {"splits": [1.5, 2]}},
            "splits of the block Split must be a list of whole numbers",
        ),
        (
            {"type": "Average", "children": [], "kwargs": {"weights": ["x", 1]}},
            "weights of the block Average must be a list of numbers",
        ),
    ):
        (source / "adapter_setup.json").write_text(json.dumps({"adapter_setup": wrong}))
        with pytest.raises(InputError, match=match):
            import_adapter(source, tmp_path / "ours", base=base)
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize(
    ("tree", "match"),
    [
        (Stack(("a", Drop(("b",), layers=(0,)))), "does not support the block Drop inside"),
        (
            Fuse(("a", Average(("b", "c")))),
            "does not support the block Average inside the block Fuse",
        ),
        (
            Average(("a", "b"), weights=(1.0, 1.0)),
            "the weights of an Average block of the library `adapters` must sum to 1",
        ),
        (
            Split(("a", "b"), splits=(2, "rest")),
            "requires explicit numbers in the option splits of the block Split",
        ),
        (*parse_trees("MultiTask(a, None)"), "`adapters` does not support None in a composition"),
        (
            *parse_trees("Average(Split(Average(a, b), c, splits=(1, 2)), d)"),
            "does not support the block Average inside two nested blocks, only a",
        ),
    ],
)
def test_what_the_library_has_no_form_for(tree, match):
    with pytest.raises(InputError, match=match):
        _written(tree, said="checkpoint work: it", level=0)


def test_the_form_of_a_tree():
    [tree] = parse_trees("Stack(a, Average(b, c, weights=(0.25, 0.75)))")
    single = [{"type": "single", "children": [name]} for name in "abc"]
    average = {"type": "Average", "children": single[1:], "kwargs": {"weights": [0.25, 0.75]}}
    expected = {"type": "Stack", "children": [single[0], average]}
    assert _written(tree, said="", level=0) == expected
