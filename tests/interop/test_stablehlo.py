"""`export stablehlo`: a process with JAX alone computes what the checkpoint computes."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from t5x_lite.adapters.config import Adapters
from t5x_lite.cli import main
from t5x_lite.commands.weights import export_stablehlo
from t5x_lite.core.errors import InputError
from t5x_lite.decoding.sampling import Decoding
from t5x_lite.inference.checkpoint import Checkpoint
from t5x_lite.inference.loading import learner_of
from t5x_lite.interop.hf_export import STABLEHLO, exported_functions
from t5x_lite.interop.hf_export import export_stablehlo as write_functions
from t5x_lite.layouts import Labelled
from t5x_lite.models.heads import Span, Token
from t5x_lite.objectives.contrastive import dpr
from t5x_lite.objectives.task_heads import Classify
from tests import t5_checkpoint
from tests.adapters.hosts import random
from tests.encoder_checkpoint import write_checkpoint, write_ranker

PLATFORMS = ["cpu", "cuda", "tpu"]


def described(directory):
    return json.loads((directory / STABLEHLO).read_text())


def call(directory, name, *inputs):
    """The lines of docs/guides/export.md."""
    weights = dict(np.load(directory / described(directory)["weights"]))
    content = (directory / described(directory)["functions"][name]["file"]).read_bytes()
    return jax.export.deserialize(content).call(weights, *inputs)


def padded(rows, *, pad_id, length=None):
    """Rows of one length, and the mask of their tokens."""
    length = length or max(map(len, rows))
    ids = np.full((len(rows), length), pad_id, np.int32)
    mask = np.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, : len(row)], mask[i, : len(row)] = row, 1
    return ids, mask


def array(name, dtype, *shape):
    return {"name": name, "shape": list(shape), "dtype": dtype}


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    directory = tmp_path_factory.mktemp("bert")
    source = write_checkpoint(directory, "bert")
    return source, export_stablehlo(source, directory / "out", inputs_length=8, pooling="mean")


@pytest.fixture(scope="module")
def t5(tmp_path_factory, tiny_vocabulary):
    directory = tmp_path_factory.mktemp("t5")
    source = t5_checkpoint.write_checkpoint(directory, tiny_vocabulary)
    options = {"inputs_length": 16, "max_decode_length": 6}
    return source, export_stablehlo(source, directory / "out", **options)


def test_the_description_of_an_encoder(bert):
    rows = [array(name, "int32", "batch", "length") for name in ("input_ids", "attention_mask")]
    assert described(bert[1]) == {
        "functions": {
            "embed": {
                "file": "embed.jax_export",
                "inputs": rows,
                "outputs": [array("vectors", "float32", "batch", 12)],
                "max_length": 8,
                "pooling": "mean",
                "normalize": True,
                "prefix": "",
                "prompts": {},
            }
        },
        "weights": "weights.npz",
        "tokenizer": "tokenizer",
        "pad_id": 0,
        "platforms": PLATFORMS,
        "compute_dtype": "float32",
        "jax": jax.__version__,
    }
    assert (bert[1] / "tokenizer" / "vocab.txt").read_text().split()[5:7] == ["a", "b"]


@pytest.mark.parametrize("batch", [1, 3])
def test_the_vectors_are_those_of_embed(bert, batch):
    encoder = Checkpoint.load([bert[0]]).encoder(pooling="mean")
    rows = encoder.rows(["a b c d", "e", "f g"][:batch]).rows
    expected = encoder.embedder(batch_size=batch, lengths=(6,)).run(encoder.params, rows)
    found = call(bert[1], "embed", *padded(rows, pad_id=0))
    np.testing.assert_array_equal(found, expected)


def test_a_row_above_the_maximum_length_is_an_error(bert):
    rows = np.ones((1, 9), np.int32)
    with pytest.raises(ValueError, match="shapes"):
        call(bert[1], "embed", rows, rows)


def test_it_runs_without_this_package(bert, tmp_path):
    """Also for cuda and tpu: each platform's program is in the file."""
    code = f"""
import sys, jax, numpy as np
from pathlib import Path
d = Path({str(bert[1])!r})
embed = jax.export.deserialize((d / "embed.jax_export").read_bytes())
ids = np.array([[2, 5, 6, 3]], np.int32)
print(np.asarray(embed.call(dict(np.load(d / "weights.npz")), ids, np.ones_like(ids))).tolist())
assert embed.platforms == ("cpu", "cuda", "tpu") and "t5x_lite" not in sys.modules
"""
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    encoder = Checkpoint.load([bert[0]]).encoder(pooling="mean")
    rows = [np.array([2, 5, 6, 3], np.int32)]
    expected = encoder.embedder(batch_size=1, lengths=(4,)).run(encoder.params, rows)
    np.testing.assert_array_equal(np.array(json.loads(run.stdout), np.float32), expected)


@pytest.mark.slow
def test_heads_of_classes_tags_and_answers(tmp_path):
    heads = (Token(num_classes=3, labels=("O", "B-X", "I-X")), Span())
    objective = Classify(num_classes=2)
    source = write_ranker(tmp_path, objective=objective, heads=heads, layout=Labelled())
    options = {"inputs_length": 8, "platforms": ("cpu",)}
    directory = export_stablehlo(source, tmp_path / "out", **options)
    functions = described(directory)["functions"]
    assert sorted(functions) == ["classifier", "span", "token"]
    assert functions["token"]["labels"] == ["O", "B-X", "I-X"]
    assert {name: one["outputs"][0]["shape"] for name, one in functions.items()} == {
        "classifier": ["batch", 2],
        "token": ["batch", "length", 3],
        "span": ["batch", 2, "length"],
    }
    model = Checkpoint.load([source], inputs_length=8)
    rows = [np.array(row, np.int32) for row in ([2, 5, 3, 6, 7, 3], [2, 9, 3, 8, 3])]
    ids, mask = padded(rows, pad_id=0, length=8)
    types = np.array([[0, 0, 0, 1, 1, 1, 0, 0], [0, 0, 0, 1, 1, 0, 0, 0]], np.int32)
    for name in functions:
        answerer = model.answerer(batch_size=2, head=name)
        expected = answerer.logits(rows, [3, 3], static_length=8)
        found = call(directory, name, ids, mask, types)
        np.testing.assert_array_equal(found, np.stack(expected))


@pytest.mark.slow
def test_two_encoders(tmp_path):
    source = write_ranker(tmp_path, objective=dpr())
    directory = export_stablehlo(source, tmp_path / "out", platforms=("cpu",))
    assert sorted(described(directory)["functions"]) == ["embed_passage", "embed_query"]
    encoder = Checkpoint.load([source]).encoder()
    rows = [np.array([2, 5, 6, 3], np.int32)]
    embedder = encoder.embedder(batch_size=1, lengths=(4,))
    for role in ("query", "passage"):
        found = call(directory, f"embed_{role}", *padded(rows, pad_id=0))
        np.testing.assert_array_equal(found, embedder.run(encoder.params, rows, role=role))


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["roberta", "electra_discriminator", "deberta_v3"])
def test_other_families(tmp_path, variant):
    source = write_checkpoint(tmp_path, variant)
    directory = export_stablehlo(source, tmp_path / "out", inputs_length=7, platforms=("cpu",))
    encoder = Checkpoint.load([source]).encoder(pooling="mean")
    rows, pad_id = encoder.rows(["a b c", "d"]).rows, encoder.loaded.vocabulary.pad_id
    expected = encoder.embedder(batch_size=2, lengths=(7,)).run(encoder.params, rows)
    found = call(directory, "embed", *padded(rows, pad_id=pad_id, length=7))
    np.testing.assert_array_equal(found, expected)
    shape = described(directory)["functions"]["embed"]["inputs"][0]["shape"]
    assert shape == ["batch", 7 if variant == "deberta_v3" else "length"]


@pytest.mark.slow
def test_adapters(bert, tmp_path):
    """A prefix, whose keys and values are repeated for a symbolic number of rows, and LoRA."""
    [loaded] = Checkpoint.load([bert[0]]).members
    adapters = Adapters(add=("a = lora(r=2)", "b = prefix(length=2)"), use="a, b")
    experiment = dataclasses.replace(loaded.experiment, adapters=adapters, train=())
    learner = learner_of(experiment)
    loaded = dataclasses.replace(
        loaded, experiment=experiment, learner=learner, params=random(learner.shapes)
    )
    model = Checkpoint((loaded,), 8)
    functions = exported_functions(model, pooling="mean", dimensions=5)
    write_functions(model, functions, tmp_path, platforms=("cpu",))
    encoder = model.encoder(pooling="mean", dimensions=5)
    rows = encoder.rows(["a b c", "d"]).rows
    expected = encoder.embedder(batch_size=2, lengths=(5,)).run(encoder.params, rows)
    assert expected.shape == (2, 5)
    found = call(tmp_path, "embed", *padded(rows, pad_id=0))
    np.testing.assert_array_equal(found, expected)


def test_the_description_of_a_t5(t5):
    ids = array("input_ids", "int32", "batch", "length")
    assert described(t5[1])["functions"] == {
        "generate": {
            "file": "generate.jax_export",
            "inputs": [array("input_ids", "int32", "batch", 16)],
            "outputs": [
                array("output_ids", "int32", "batch", 6),
                array("score", "float32", "batch"),
            ],
            "inputs_end": [1],
            "eos_id": 1,
        },
        "score": {
            "file": "score.jax_export",
            "inputs": [ids, array("target_ids", "int32", "batch", "target_length")],
            "outputs": [array("log_likelihood", "float32", "batch")],
        },
    }
    assert (t5[1] / "tokenizer" / "spiece.model").is_file()


def test_the_outputs_of_a_t5_are_those_of_predict_and_score(t5):
    source, directory = t5
    model = Checkpoint.load([source])
    rows, _ = model.inputs(["a b c", "the statement", ""])
    tokens, scores = call(directory, "generate", padded(rows, pad_id=0, length=16)[0])
    generator = model.generator(Decoding(max_decode_length=6), batch_size=3)
    expected = [one for [one] in generator.run(model.params, rows)]
    for row, one in zip(np.asarray(tokens).tolist(), expected, strict=True):
        assert tuple(row[: len(one.ids)]) == one.ids
    np.testing.assert_allclose(scores, [one.score for one in expected], rtol=1e-6)
    targets = model.targets(["so", "a longer one", ""])
    expected = model.scorer(batch_size=3).run(model.params, rows, targets)
    given = (padded(each, pad_id=0, length=16)[0] for each in (rows, targets))
    np.testing.assert_allclose(call(directory, "score", *given), expected, rtol=1e-6)


@pytest.mark.slow
def test_long_inputs_and_the_compute_dtype(tmp_path, t5):
    """The cache of decoding has several blocks."""
    options = {"inputs_length": 128, "max_decode_length": 40, "compute_dtype": "bfloat16"}
    directory = export_stablehlo(t5[0], tmp_path / "out", platforms=("cpu",), **options)
    assert described(directory)["compute_dtype"] == "bfloat16"
    model = Checkpoint.load([t5[0]], compute_dtype="bfloat16")
    rows = [np.arange(3, 103, dtype=np.int32), np.array([5, 1], np.int32)]
    tokens, _ = call(directory, "generate", padded(rows, pad_id=0, length=128)[0])
    generator = model.generator(Decoding(max_decode_length=40), batch_size=2)
    for row, [one] in zip(np.asarray(tokens), generator.run(model.params, rows), strict=True):
        assert tuple(row.tolist()[: len(one.ids)]) == one.ids


def test_what_is_refused(bert, t5, tmp_path, capsys):
    with pytest.raises(InputError, match=r"generates text, but --pooling is for vectors"):
        export_stablehlo(t5[0], tmp_path / "out", pooling="mean")
    with pytest.raises(InputError, match="is an encoder, but --max-decode-length is for models"):
        export_stablehlo(bert[0], tmp_path / "out", max_decode_length=5)
    with pytest.raises(InputError, match="maximum length of the model is"):
        export_stablehlo(bert[0], tmp_path / "out", inputs_length=10_000)
    assert main(["export", "stablehlo", str(bert[0]), "out", "--platforms", "gpu"]) == 2
    assert "--platforms" in capsys.readouterr().err
    assert not Path(tmp_path / "out").exists()
