"""`import` and `export`: directories that other commands take, and nothing half written."""

import dataclasses
import json
import os
import shutil
import zipfile

import flax.serialization
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from t5x_lite.checkpoints import items as checkpoint_manifest
from t5x_lite.checkpoints.items import find_damage, lazy_params, write_params
from t5x_lite.checkpoints.reading import Checkpoints, find_step
from t5x_lite.commands.weights import export_hf, import_hf, import_t5x
from t5x_lite.core import trees
from t5x_lite.core.errors import InputError
from t5x_lite.data.vocabularies.byte_level import Bytes
from t5x_lite.data.vocabularies.loading import load_vocabulary
from t5x_lite.inference.loading import Loaded, learner_of
from t5x_lite.interop import hf_import, t5x
from t5x_lite.interop.rules import LazyArray, pieces
from t5x_lite.interop.tensor_files import read_safetensors, read_tensors
from t5x_lite.train import restoring
from t5x_lite.train.restoring import WorkDirectory, holds_another
from t5x_lite.train.step import TrainState
from t5x_lite.train.training import trained_steps
from tests.arrays import assert_equal_arrays, saved_arrays
from tests.tiny_checkpoint import flip


@pytest.mark.gate("umt5")
@pytest.mark.parametrize("variant", ["t5", "mt5", "umt5", "byt5"])
@pytest.mark.slow
def test_in_out_and_in_again_is_bit_equal(release, tmp_path, variant):
    golden, source = release(variant)
    import_hf(source, tmp_path / "ours")
    export_hf(tmp_path / "ours", tmp_path / "theirs")
    assert_equal_arrays(read_safetensors(tmp_path / "theirs" / "model.safetensors"), golden.weights)
    import_hf(tmp_path / "theirs", tmp_path / "again")
    assert_equal_arrays(saved_arrays(tmp_path / "again"), saved_arrays(tmp_path / "ours"))
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    shared = {key: value for key, value in golden.config.items() if key in config}
    dtype = {"dtype": "bfloat16", "torch_dtype": "bfloat16"}
    assert config == {**config, **shared, **dtype}
    generation = json.loads((tmp_path / "theirs" / "generation_config.json").read_text())
    assert generation["decoder_start_token_id"] == 0


def test_what_is_imported_is_a_checkpoint(release, tmp_path):
    golden, source = release("t5_1_1")
    import_hf(source, tmp_path / "ours")
    assert find_step(tmp_path / "ours") == tmp_path / "ours"
    assert find_damage(tmp_path / "ours") is None
    (tmp_path / "ours").rename(tmp_path / "moved")
    loaded = Loaded.from_checkpoint(str(tmp_path / "moved"), step=None)
    assert loaded.vocabulary.size == 400
    assert loaded.experiment.model.d_model == 16
    table = loaded.params["model"]["token_embedding"]["table"]
    assert table.dtype == jnp.float32
    np.testing.assert_array_equal(table, golden.weights["shared.weight"].astype(np.float32))
    assert jax.tree.map(lambda x: x.shape, loaded.params) == jax.tree.map(
        lambda x: x.shape, loaded.learner.shapes
    )


@pytest.mark.slow
def test_bytes_keep_their_sentinels(release, tmp_path):
    _, source = release("byt5")
    import_hf(source, tmp_path / "hf")
    import_hf(source, tmp_path / "seqio", sentinels="seqio")
    for name, layout in (("hf", "hf"), ("seqio", "seqio")):
        loaded = Loaded.from_checkpoint(str(tmp_path / name), step=None)
        assert isinstance(loaded.vocabulary, Bytes)
        assert loaded.vocabulary.layout == layout
        assert loaded.vocabulary.extra_ids == 125
    experiment = loaded.experiment
    assert experiment.data.vocabulary == "bytes"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.slow
def test_dtypes_that_are_asked_for(release, tmp_path, dtype):
    golden, source = release("t5")
    import_hf(source, tmp_path / "ours", dtype="float32")
    params = saved_arrays(tmp_path / "ours")
    assert {array.dtype for array in params.values()} == {np.dtype(np.float32)}
    export_hf(tmp_path / "ours", tmp_path / "theirs", dtype=dtype)
    found = read_safetensors(tmp_path / "theirs" / "model.safetensors")
    wanted = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float32
    assert_equal_arrays(
        found, {name: weight.astype(wanted) for name, weight in golden.weights.items()}
    )
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert config["dtype"] == dtype


def test_the_settings_of_the_source_are_kept(release, tmp_path):
    _, source = release("mt5")
    (source / "generation_config.json").write_text('{"max_length": 99}')
    import_hf(source, tmp_path / "ours")
    export_hf(tmp_path / "ours", tmp_path / "theirs")
    generation = json.loads((tmp_path / "theirs" / "generation_config.json").read_text())
    assert generation == {"max_length": 99}
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert config["model_type"] == "mt5"


@pytest.mark.slow
def test_what_was_trained_is_exported(tiny_run, tiny_vocabulary, tmp_path):
    export_hf(tiny_run, tmp_path / "theirs")
    found = read_tensors(tmp_path / "theirs").arrays
    loaded = Loaded.from_checkpoint(str(tiny_run), step=None)
    flat = trees.flatten(loaded.params["model"])
    np.testing.assert_array_equal(found["shared.weight"], flat["token_embedding/table"])
    np.testing.assert_array_equal(found["lm_head.weight"], flat["lm_head/kernel"].T)
    assert (tmp_path / "theirs" / "spiece.model").read_bytes() == tiny_vocabulary.read_bytes()
    import_hf(tmp_path / "theirs", tmp_path / "again")
    assert_equal_arrays(
        saved_arrays(tmp_path / "again"), {f"model/{p}": np.asarray(a) for p, a in flat.items()}
    )


def spoil_config(source):
    (source / "config.json").unlink()


def spoil_tokenizer(source):
    (source / "spiece.model").unlink()


def spoil_weights(source):
    path = source / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def spoil_numbers(source):
    path = source / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-2:] = b"\xc0\x7f"  # NaN
    path.write_bytes(content)


def spoil_pickle(source):
    (source / "model.safetensors").unlink()
    with zipfile.ZipFile(source / "pytorch_model.bin", "w") as file:
        file.writestr("archive/data.pkl", b"cos\nsystem\n(X\x05\0\0\0falsetR.")


def spoil_vocabulary(source):
    (source / "tokenizer_config.json").write_text('{"extra_ids": 101}')


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (spoil_config, r"contains no config\.json"),
        (spoil_tokenizer, "contains no tokenizer"),
        (spoil_weights, "truncated"),
        (spoil_numbers, "holds 1 of .* weights that are NaN or infinite"),
        (spoil_pickle, r"the pickle calls os\.system"),
        (spoil_vocabulary, "tokenizer has 401 tokens .* embedding has 400"),
    ],
)
def test_nothing_is_left_of_an_import_that_fails(release, tmp_path, spoil, message):
    _, source = release("t5")
    spoil(source)
    with pytest.raises(InputError, match=message) as error:
        import_hf(source, tmp_path / "new" / "ours")
    assert "\n" not in str(error.value)
    assert os.listdir(tmp_path) == ["t5"]


def test_what_is_there_is_not_overwritten(release, tmp_path):
    _, source = release("t5")
    import_hf(source, tmp_path / "ours")
    before = sorted(tmp_path.rglob("*"))
    for change in (lambda: import_hf(source, tmp_path / "ours"),
                   lambda: export_hf(tmp_path / "ours", source)):  # fmt: skip
        with pytest.raises(InputError, match="exists and is not empty"):
            change()
    assert sorted(tmp_path.rglob("*")) == before


def test_checkpoints_that_cannot_be_exported(release, tmp_path):
    _, source = release("t5")
    with pytest.raises(InputError, match=r"a Hugging Face model, .*; run `t5x-lite import hf"):
        export_hf(source, tmp_path / "theirs")
    import_hf(source, tmp_path / "ours")
    path = tmp_path / "ours" / "files" / "config.json"
    config = json.loads(path.read_text())
    config["model"]["share_layers"] = True
    path.write_text(json.dumps(config))
    checkpoint_manifest.write(tmp_path / "ours")
    with pytest.raises(InputError, match=r"decoder/\S+ is tied to model/encoder"):
        export_hf(tmp_path / "ours", tmp_path / "theirs")
    assert sorted(os.listdir(tmp_path)) == ["ours", "t5"]


@pytest.mark.slow
def test_layers_that_are_shared_are_there_twice(tiny_experiment, tmp_path):
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1, "share_layers": True}
    model = tiny_experiment.model.replace(**layers)
    experiment = dataclasses.replace(tiny_experiment, model=model)
    learner = learner_of(experiment)
    state = TrainState(jnp.int32(7), jax.jit(learner.init)(jax.random.key(0)), {})
    vocabulary = load_vocabulary(experiment.data.vocabulary)
    work = tmp_path / "work"
    with Checkpoints(work) as checkpoints, WorkDirectory.open(str(work)) as workdir:
        restoring.saver(checkpoints, experiment, vocabulary, workdir)(state, b"here", None)
    export_hf(work, tmp_path / "theirs")
    import_hf(tmp_path / "theirs", tmp_path / "again")
    again = Loaded.from_checkpoint(str(tmp_path / "again"), step=None)
    assert not again.experiment.model.share_layers
    seen = learner.read(state.params)["model"]
    jax.tree.map(np.testing.assert_array_equal, again.params["model"], seen)


def test_a_damaged_config_of_the_source_is_named(release, tmp_path):
    _, source = release("t5")
    import_hf(source, tmp_path / "ours")
    (tmp_path / "ours" / "files" / "huggingface" / "config.json").write_text("{")
    checkpoint_manifest.write(tmp_path / "ours")
    with pytest.raises(InputError, match=r"files/huggingface/config\.json: not JSON \(Expecting"):
        export_hf(tmp_path / "ours", tmp_path / "theirs")


@pytest.mark.slow
def test_weights_that_are_no_numbers_are_not_exported(release, tmp_path):
    _, source = release("t5")
    import_hf(source, tmp_path / "ours")
    arrays = lazy_params(tmp_path / "ours" / "params")
    name = "model/encoder/final_norm/scale"
    broken = np.full(arrays[name].shape, np.nan, arrays[name].dtype)
    spoilt = {
        path: LazyArray(array.shape, array.dtype, array.read) for path, array in arrays.items()
    }
    spoilt[name] = LazyArray(broken.shape, broken.dtype, lambda: broken)
    shutil.copytree(tmp_path / "ours" / "files", tmp_path / "nan" / "files")
    write_params(tmp_path / "nan" / "params", spoilt)
    checkpoint_manifest.write(tmp_path / "nan")
    with pytest.raises(InputError, match=r"nan: encoder/final_norm/scale holds 16 of 16 weights"):
        export_hf(tmp_path / "nan", tmp_path / "theirs")
    assert not (tmp_path / "theirs").exists()


@pytest.mark.parametrize("layout", ["hf", "seqio"])
def test_the_reading_of_special_tokens_is_kept(release, tmp_path, tiny_vocabulary, layout):
    _, source = release("t5")
    import_hf(source, tmp_path / "ours", sentinels=layout)
    directory = tmp_path / "ours" / "files" / "vocabulary"
    assert (directory / "special_tokens.json").exists() == (layout == "hf")
    found = load_vocabulary(directory)
    assert found.layout == layout
    assert (found.encode("<extra_id_0></s>") == [399, 1]) == (layout == "hf")
    # The same ids: weights go from one to the other.
    assert not holds_another(directory, load_vocabulary(tiny_vocabulary))
    assert not holds_another(tiny_vocabulary.parent, found)


@pytest.mark.slow
def test_added_tokens_come_along_in_and_out(release, tmp_path, tiny_vocabulary):
    """300 pieces, 90 sentinels and three added tokens, in an embedding of 400 rows."""
    _, source = release("t5")
    ids = {"<sep>": 390, "\n": 391, "{": 392}
    (source / "tokenizer_config.json").write_text('{"extra_ids": 90}')
    (source / "added_tokens.json").write_text(json.dumps(ids))
    import_hf(source, tmp_path / "ours")
    loaded = Loaded.from_checkpoint(str(tmp_path / "ours"), step=None)
    assert loaded.vocabulary.size == 393
    found = loaded.vocabulary.encode("a<sep>b\n{ <extra_id_0>")
    assert [i for i in found if i > 300] == [390, 391, 392, 389]
    assert loaded.vocabulary.decode([391, 392]) == "\n {"
    # The plain model has other ids, and is told apart.
    directory = tmp_path / "ours" / "files" / "vocabulary"
    assert holds_another(directory, load_vocabulary(tiny_vocabulary, extra_ids=90))
    assert not holds_another(directory, loaded.vocabulary)
    export_hf(tmp_path / "ours", tmp_path / "theirs")
    written = json.loads((tmp_path / "theirs" / "added_tokens.json").read_text())
    assert written == ids
    import_hf(tmp_path / "theirs", tmp_path / "again")
    again = load_vocabulary(tmp_path / "again" / "files" / "vocabulary", extra_ids=90)
    assert again.digest == loaded.vocabulary.digest


@pytest.mark.slow
def test_added_tokens_of_bytes_come_along(release, tmp_path):
    _, source = release("byt5")
    (source / "tokenizer_config.json").write_text(
        '{"extra_ids": 100, "tokenizer_class": "ByT5Tokenizer"}'
    )
    (source / "added_tokens.json").write_text('{"<sep>": 359}')
    import_hf(source, tmp_path / "ours")
    loaded = Loaded.from_checkpoint(str(tmp_path / "ours"), step=None)
    data = loaded.experiment.data
    named = load_vocabulary(data.vocabulary, extra_ids=data.extra_ids)
    assert named.digest == loaded.vocabulary.digest
    assert named.encode("a<sep>b") == [100, 359, 101]


def test_a_vocabulary_that_is_too_small_is_named(tiny_vocabulary, caplog):
    pieces_alone = load_vocabulary(tiny_vocabulary, extra_ids=0)
    hf_import._warn_of_few_tokens("src", pieces_alone, vocab_size=427)
    hf_import._warn_of_few_tokens("src", Bytes(layout="seqio"), vocab_size=512)
    assert caplog.messages == []
    hf_import._warn_of_few_tokens("src", pieces_alone, vocab_size=428)
    assert caplog.messages == [
        "src: the vocabulary has 300 tokens, but the model's embedding has 428 rows; check that "
        "the model was trained with this vocabulary"
    ]


def write_t5x(directory, loaded):
    """A checkpoint of t5x with the parameters of one of ours, in its index alone."""
    stacks = [
        t5x.Stack(
            name=name,
            layer=f"{name}/layers_{{layer}}",
            axis=None,
            num_layers=2,
            joined=True,
            bias=f"{name}/relpos_bias/rel_embedding",
        )
        for name in ("encoder", "decoder")
    ]
    arrays = {path: np.asarray(a) for path, a in trees.flatten(loaded.params["model"]).items()}
    table = t5x.table(loaded.experiment.model, stacks)
    theirs = {
        piece.name: np.ascontiguousarray(piece.to_theirs(piece.of(arrays[piece.path])))
        for piece in pieces(table, {path: array.shape for path, array in arrays.items()})
    }
    content = {"version": 3, "optimizer": {"target": trees.unflatten(theirs)}}
    directory.mkdir(parents=True)
    (directory / "checkpoint").write_bytes(flax.serialization.msgpack_serialize(content))


@pytest.mark.slow
def test_t5x_and_hugging_face_give_the_same(release, tmp_path, tiny_vocabulary):
    _, source = release("t5_1_1")
    import_hf(source, tmp_path / "hf", dtype="float32")
    loaded = Loaded.from_checkpoint(str(tmp_path / "hf"), step=None)
    write_t5x(tmp_path / "t5x" / "checkpoint_1", loaded)
    import_t5x(tmp_path / "t5x", tmp_path / "ours", vocabulary=tiny_vocabulary)
    assert_equal_arrays(saved_arrays(tmp_path / "ours"), saved_arrays(tmp_path / "hf"))
    again = Loaded.from_checkpoint(str(tmp_path / "ours"), step=None)
    assert again.experiment.model == loaded.experiment.model
    assert again.vocabulary.digest == loaded.vocabulary.digest
    assert (trained_steps(tmp_path / "ours"), loaded.experiment.optimizer.first_step) == (1, 0)
    with pytest.raises(InputError, match=r"has 401 tokens with 101 extra ids, .* 400 rows"):
        import_t5x(tmp_path / "t5x", tmp_path / "no", vocabulary=tiny_vocabulary, extra_ids=101)
    with pytest.raises(
        InputError, match=r"^--extra-ids is 401, but .* 400 rows; decrease --extra-ids$"
    ):
        import_t5x(tmp_path / "t5x", tmp_path / "no", vocabulary=tiny_vocabulary, extra_ids=401)


def test_a_t5x_checkpoint_that_is_not_there(tmp_path, tiny_vocabulary):
    with pytest.raises(InputError, match="gone: no such directory"):
        import_t5x(tmp_path / "gone", tmp_path / "ours", vocabulary=tiny_vocabulary)
    assert os.listdir(tmp_path) == []


def test_a_damaged_checkpoint_is_not_exported(tiny_run, tmp_path):
    step = shutil.copytree(tiny_run / "checkpoints" / "10", tmp_path / "10")
    path = next((step / "params" / "ocdbt.process_0" / "d").iterdir())
    flip(path)
    with pytest.raises(
        InputError, match=r"is damaged \(params/ocdbt\.process_0/d/\w+: its SHA-256"
    ):
        export_hf(step, tmp_path / "theirs")
    assert not (tmp_path / "theirs").exists()
    with pytest.raises(InputError, match=r"checkpoint gs://b/run must be a local path; mount"):
        export_hf("gs://b/run", tmp_path / "theirs")
