"""Retrievers that trained a module by contrast, with one encoder and with two."""

import dataclasses
import json
import logging
import shutil

import numpy as np
import pytest

from t5x_lite import layouts
from t5x_lite.adapters.config import Adapters
from t5x_lite.checkpoints.init import Init
from t5x_lite.checkpoints.items import lazy_params
from t5x_lite.cli import main
from t5x_lite.commands.deltas import compose, merge
from t5x_lite.commands.weights import export_adapter, export_hf, import_adapter, import_hf
from t5x_lite.config import Checkpoints, Evaluation
from t5x_lite.core import trees
from t5x_lite.core.errors import InputError
from t5x_lite.data.config import Data
from t5x_lite.inference.checkpoint import Checkpoint
from t5x_lite.inference.loading import Loaded, with_loaded
from t5x_lite.interop.sft import export_sft
from t5x_lite.models.vector_heads import as_model
from t5x_lite.objectives.contrastive import Contrastive
from t5x_lite.optim.config import AdamW, Constant
from t5x_lite.train import phases
from t5x_lite.train.training import train
from tests.encoder_checkpoint import write_checkpoint
from tests.interop.peft_files import LORA, bert_lora
from tests.interop.peft_files import write as write_peft

pytestmark = pytest.mark.slow
ROLES = ("query", "passage")


def config(base, directory, *, towers, lines=("m = lora(r=2)",), **changes):
    """A run of two steps on a tiny BERT."""
    known = Loaded.from_checkpoint(str(base), step=None).experiment
    letters = [[*"abc"], [*"def"], [*"ghi"], [*"jkl"]] * 4
    texts = [{"query": x, "pos": [f"{x} {y}"], "neg": [z]} for x, y, z in letters]
    (directory / "data").mkdir(exist_ok=True)
    for name in ("train", "validation"):
        (directory / "data" / f"{name}.jsonl").write_text("\n".join(map(json.dumps, texts)))
    return dataclasses.replace(
        known,
        objective=Contrastive(pooling="mean", towers=towers),
        data=Data(
            task="tasks.pairs:jsonl",
            layout=layouts.Groups(negatives=1),
            vocabulary=str(base / "files" / "vocabulary"),
            directory=str(directory / "data"),
            batch_size=4,
            inputs_length=8,
            targets_length=8,
            pack=False,
        ),
        optimizer=AdamW(schedule=Constant(value=0.05)),
        init=Init(checkpoint=str(base)),
        adapters=Adapters(add=lines),
        checkpoints=Checkpoints(period=2),
        evaluation=Evaluation(max_batches=1, task_metrics=False),
        **{"steps": 2, "workdir": str(directory / "run"), **changes},
    )


def vectors(checkpoint, role):
    """Of three texts, by the encoder of a role."""
    encoder = Checkpoint.load([str(checkpoint)]).encoder(pooling="mean", normalize=True)
    rows = encoder.rows(["a b", "d", "g h i"]).rows
    return np.asarray(encoder.embedder(batch_size=4).run(encoder.params, rows, role=role))


def losses(run):
    lines = (run / "metrics.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return {one["step"]: one["loss"] for one in found if "loss" in one}


def same_vectors(one, other):
    for role in ROLES:
        np.testing.assert_allclose(vectors(one, role), vectors(other, role), rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def two(tmp_path_factory, compile_once):
    """A directory with a base, and a run whose towers have LoRAs of their own."""
    directory = tmp_path_factory.mktemp("two")
    base = write_checkpoint(directory, "bert")
    train(config(base, directory, towers="two", log_period=1))
    return directory


def test_each_tower_has_trained_its_own_module(two):
    run, base = two / "run", two / "bert"
    saved = lazy_params(run / "checkpoints" / "2" / "params")
    assert saved.keys() == {
        f"adapters/m/{tower}encoder/attention/{site}/{leaf}"
        for tower in ("", "towers/passage/")
        for site in ("query", "value")
        for leaf in "ab"
    }
    read = {path: array.read() for path, array in saved.items()}
    query, passage = (as_model(read, tower) for tower in ("", "passage"))
    assert query.keys() == passage.keys()
    assert all(np.any(query[path] != passage[path]) for path in query)
    params = Loaded.from_checkpoint(str(run), step=None).params
    plain = Loaded.from_checkpoint(str(base), step=None).params
    own, towers = trees.flatten(params["model"]), trees.flatten(params["towers"]["passage"])
    for path, array in trees.flatten(plain["model"]).items():
        np.testing.assert_array_equal(own[path], array)
        np.testing.assert_array_equal(towers[path], array)
    assert np.abs(vectors(run, "query") - vectors(run, "passage")).max() > 1e-3


def test_a_run_with_two_towers_resumes_bit_for_bit(two):
    whole = config(two / "bert", two, towers="two", log_period=1)
    parts = dataclasses.replace(whole, workdir=str(two / "parts"))
    train(dataclasses.replace(parts, steps=1, checkpoints=Checkpoints(period=1)))
    train(dataclasses.replace(parts, checkpoints=Checkpoints(period=1)))
    assert losses(two / "parts") == losses(two / "run")
    ours, theirs = (lazy_params(two / run / "checkpoints/2/params") for run in ("run", "parts"))
    for path, array in ours.items():
        np.testing.assert_array_equal(array.read(), theirs[path].read())


def test_the_merged_retriever_and_its_directories_have_the_same_vectors(two, tmp_path):
    run = two / "run"
    merge(str(run), str(tmp_path / "merged"))
    compose("a", str(tmp_path / "delta"), delta=[f"a={run}"])
    merge(str(tmp_path / "delta"), str(tmp_path / "composed"))
    export_hf(run, tmp_path / "theirs", sentence_transformers=True)
    import_hf(tmp_path / "theirs", tmp_path / "again")
    for name in ("merged", "composed", "again"):
        same_vectors(tmp_path / name, run)
    assert not Loaded.from_checkpoint(str(tmp_path / "merged"), step=None).learner.adapters


def test_a_directory_of_peft_for_each_tower(two, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    run, base = two / "run", two / "bert"
    compose("a", str(tmp_path / "delta"), delta=[f"a={run}"])
    export_adapter(run, tmp_path / "peft")
    assert (
        "peft: wrote one directory for each encoder of the retriever: query and passage"
        in caplog.text
    )
    export_adapter(run, tmp_path / "library", format="adapters")
    export_adapter(tmp_path / "delta", tmp_path / "sum")
    for name in ("peft", "library", "sum"):
        assert sorted(path.name for path in (tmp_path / name).iterdir()) == ["passage", "query"]
        import_adapter(tmp_path / name, tmp_path / f"{name}_ours", base=base)
        same_vectors(tmp_path / f"{name}_ours", run)
    assert "does not define how text vectors are computed; assuming [CLS] states" in caplog.text
    import_adapter(tmp_path / "peft" / "passage", tmp_path / "one", base=base)
    found = vectors(tmp_path / "one", "query")
    np.testing.assert_allclose(found, vectors(run, "passage"), rtol=1e-5, atol=1e-5)


def test_modules_of_two_towers_are_loaded_and_begun_with(two, tmp_path):
    run, base = two / "run", two / "bert"
    more = config(base, two, towers="two", lines=("n = seq_bn(reduction=2)",))
    adapters = Adapters(add=("n = seq_bn(reduction=2)",), load=(f"m={run}",))
    train(dataclasses.replace(more, adapters=adapters, workdir=str(tmp_path / "more"), steps=1))
    params = Loaded.from_checkpoint(str(tmp_path / "more"), step=None).params["adapters"]
    own = Loaded.from_checkpoint(str(run), step=None).params["adapters"]
    merge(str(tmp_path / "more"), str(tmp_path / "kept"))  # no kernel holds seq_bn
    (left,) = Loaded.from_checkpoint(str(tmp_path / "kept"), step=None).learner.adapters
    assert left.name == "n"
    same_vectors(tmp_path / "kept", tmp_path / "more")
    for path, array in trees.flatten(own).items():
        np.testing.assert_array_equal(trees.flatten(params)[path], array)
    begun = config(base, two, towers="two", workdir=str(tmp_path / "begun"), steps=1)
    export_adapter(run, tmp_path / "peft")
    import_adapter(tmp_path / "peft" / "query", tmp_path / "one", base=base, name="m")
    one = dataclasses.replace(
        begun,
        init=Init(checkpoint=str(tmp_path / "one")),
        optimizer=AdamW(schedule=Constant(value=0.0)),
    )
    train(one)
    flat = trees.flatten(Loaded.from_checkpoint(str(tmp_path / "begun"), step=None).params)
    passage, query = as_model(flat, "passage"), as_model(flat)
    assert passage.keys() == query.keys()
    for path, array in trees.flatten({"adapters": own}).items():
        if "towers" not in path:
            np.testing.assert_array_equal(query[path], array)
            np.testing.assert_array_equal(passage[path], array)


def test_what_two_towers_refuse(two, tmp_path):
    run, base = two / "run", two / "bert"
    export_adapter(run, tmp_path / "peft")
    import_adapter(tmp_path / "peft" / "query", tmp_path / "one", base=base)
    both = config(base, two, towers="two", lines=())
    loads = Adapters(load=(f"m={tmp_path / 'one'}",))
    with pytest.raises(
        InputError, match="has parameters for one encoder, but the objective also has the encoder"
    ):
        with_loaded(dataclasses.replace(both, adapters=loads), earlier=None)
    single = dataclasses.replace(
        config(base, two, towers="one"), adapters=Adapters(load=(f"m={run}",))
    )
    with pytest.raises(InputError, match="has parameters for two encoders"):
        with_loaded(single, earlier=None)
    merge(str(run), str(tmp_path / "merged"))
    with pytest.raises(InputError, match="holds an adapter for one encoder, but checkpoint"):
        import_adapter(tmp_path / "peft" / "query", tmp_path / "none", base=tmp_path / "merged")
    with pytest.raises(InputError, match="changes one encoder"):
        export_sft(run, tmp_path / "none")
    sparse = config(base, two, towers="two", lines=("m = sparse(select='random')",))
    with pytest.raises(InputError, match="'m' trains in phases, which support only one encoder"):
        phases.prepared(sparse, lambda *_: None)
    shutil.copytree(tmp_path / "peft", tmp_path / "other")
    shutil.rmtree(tmp_path / "other" / "passage")
    with pytest.raises(
        InputError, match="passage/ with the adapter of the passage encoder is missing"
    ):
        import_adapter(tmp_path / "other", tmp_path / "none", base=base)
    tensors = bert_lora(size=12, names=("query",))
    write_peft(tmp_path / "other" / "passage", {**LORA, "target_modules": ["query"]}, tensors)
    with pytest.raises(InputError, match=r"have different adapters: adapter = lora\("):
        import_adapter(tmp_path / "other", tmp_path / "none", base=base)
    assert not (tmp_path / "none").exists()
    assert (
        main(
            [
                "import",
                "adapter",
                str(tmp_path / "peft"),
                str(tmp_path / "none"),
                "--base",
                str(run),
            ]
        )
        == 2
    )


@pytest.mark.exhaustive
def test_a_retriever(tmp_path, compile_once):
    """Of two steps, by the command line."""
    base = write_checkpoint(tmp_path, "bert")
    (tmp_path / "in.txt").write_text("a b\nd\n")
    experiment = config(base, tmp_path, towers="one")
    train(experiment)
    run, merged = tmp_path / "run", tmp_path / "merged"
    assert main(["merge", str(run), str(merged)]) == 0
    found = []
    for source in (base, run, merged):
        out = str(tmp_path / f"{source.name}.npy")
        line = ["embed", "--checkpoint", str(source), "--input", str(tmp_path / "in.txt")]
        assert main([*line, "--output", out, "--pooling", "mean"]) == 0
        found.append(np.load(out))
    assert np.abs(found[1] - found[0]).max() > 1e-3
    np.testing.assert_allclose(found[2], found[1], rtol=1e-5, atol=1e-5)
