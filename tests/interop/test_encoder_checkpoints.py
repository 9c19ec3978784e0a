"""Encoders through `import` and `export`: what is written is what other commands take."""

import dataclasses
import json
import logging

import jax.numpy as jnp
import numpy as np
import pytest

from scripts import encoder_goldens as goldens
from t5x_lite import layouts
from t5x_lite.commands.weights import export_hf, import_hf
from t5x_lite.config import Experiment
from t5x_lite.core.errors import InputError
from t5x_lite.core.tied_parameters import Difference
from t5x_lite.core.trees import flatten
from t5x_lite.data.config import Data
from t5x_lite.data.vocabularies.loading import load_vocabulary
from t5x_lite.inference.loading import Loaded, learner_of
from t5x_lite.interop.encoder_checkpoints import export_of, exported_head
from t5x_lite.interop.encoders import BERT as FAMILY
from t5x_lite.interop.rules import LazyArray
from t5x_lite.interop.tensor_files import read_safetensors
from t5x_lite.models.encoder import BertConfig, EncoderConfig
from t5x_lite.models.heads import Classifier, Mlm, Rtd, Span
from t5x_lite.objectives.base import NoLoss
from t5x_lite.objectives.electra import Electra
from t5x_lite.objectives.masked_lm import MaskedLM
from t5x_lite.optim.config import Adafactor, Constant
from tests.arrays import assert_equal_arrays, saved_arrays
from tests.interop.test_torch_files import archive, state_dict, tensor

BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ROBERTA = ("[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]")


def release(tmp_path, variant):
    """A variant's directory with a vocab.txt of 20 pieces whose padding is the config's."""
    golden = goldens.read(variant)
    directory = tmp_path / variant
    goldens.write_release(golden, directory)
    special = ROBERTA if golden.config["pad_token_id"] == 1 else BERT
    (directory / "vocab.txt").write_text("\n".join([*special, *"abcdefghijklmno"]) + "\n")
    (directory / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    return golden, directory


@pytest.mark.gate("roberta", "electra_generator")
@pytest.mark.parametrize("variant", goldens.VARIANTS)
@pytest.mark.slow
def test_in_out_and_in_again_is_bit_equal(tmp_path, variant):
    golden, source = release(tmp_path, variant)
    import_hf(source, tmp_path / "ours")
    export_hf(tmp_path / "ours", tmp_path / "theirs")
    assert_equal_arrays(read_safetensors(tmp_path / "theirs" / "model.safetensors"), golden.weights)
    import_hf(tmp_path / "theirs", tmp_path / "again")
    assert_equal_arrays(saved_arrays(tmp_path / "again"), saved_arrays(tmp_path / "ours"))
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert {name: config[name] for name in golden.config} == golden.config
    assert config["dtype"] == "bfloat16"
    for name in ("vocab.txt", "tokenizer_config.json"):
        assert (tmp_path / "theirs" / name).read_bytes() == (source / name).read_bytes()


def test_for_sentence_transformers(tmp_path):
    _, source = release(tmp_path, "bert")
    import_hf(source, tmp_path / "ours")
    options = {"sentence_transformers": True, "pooling": "cls"}
    export_hf(tmp_path / "ours", tmp_path / "theirs", **options)
    written = sorted(
        path.relative_to(tmp_path / "theirs").as_posix()
        for path in (tmp_path / "theirs").rglob("*")
        if path.is_file()
    )
    assert written == [
        "1_Pooling/config.json",
        "2_Normalize/config.json",
        "README.md",
        "config.json",
        "config_sentence_transformers.json",
        "model.safetensors",
        "modules.json",
        "sentence_bert_config.json",
        "tokenizer_config.json",
        "vocab.txt",
    ]
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert config["architectures"] == ["BertModel"]  # the head is left out
    with pytest.raises(InputError, match="exports the model, but --part is 'generator'"):
        export_hf(tmp_path / "ours", tmp_path / "other", part="generator", **options)
    with pytest.raises(InputError, match="--pooling and --normalize need --sentence-transformers"):
        export_hf(tmp_path / "ours", tmp_path / "other", normalize=False)
    assert not (tmp_path / "other").exists()


def write_torch(path, arrays):
    """A file of PyTorch's of float32 arrays."""
    arrays = {name: np.ascontiguousarray(array, np.float32) for name, array in arrays.items()}
    tensors, storages = {}, {}
    for key, (name, array) in enumerate(arrays.items()):
        strides = [stride // array.itemsize for stride in array.strides]
        options = {"shape": array.shape, "strides": strides}
        tensors[name] = tensor(str(key), "FloatStorage", array.size, **options)
        storages[str(key)] = array.tobytes()
    archive(path, state_dict(**tensors), storages)


@pytest.mark.parametrize("own_config", [True, False])
@pytest.mark.gate("True")
@pytest.mark.slow
def test_the_generator_of_a_release_of_deberta(tmp_path, own_config):
    golden, source = release(tmp_path, "deberta_v3")
    with pytest.raises(InputError, match=r"contains no pytorch_model\.generator\.bin"):
        import_hf(source, tmp_path / "ours", part="generator")
    table = np.random.default_rng(0).normal(size=(16, 12)).astype(np.float32)
    name = "deberta.embeddings.position_embeddings.weight"
    arrays = {**golden.weights, name: table}
    if own_config:
        arrays = {name: array for name, array in arrays.items() if "layer.1." not in name}
        small = {**golden.config, "num_hidden_layers": 1}
        del small["model_type"]
        (source / "generator_config.json").write_text(json.dumps(small))
    write_torch(source / "pytorch_model.generator.bin", arrays)
    import_hf(source, tmp_path / "ours", part="generator")
    found = Loaded.from_checkpoint(str(tmp_path / "ours"), step=None).experiment
    assert found.objective == MaskedLM(mask_id=4)
    assert vars(found.model)["enhanced_mask_decoder"]
    assert vars(found.model)["num_layers"] == 2 - own_config
    np.testing.assert_array_equal(
        saved_arrays(tmp_path / "ours")["model/embedding/position"], table
    )
    import_hf(source, tmp_path / "other")
    other = Loaded.from_checkpoint(str(tmp_path / "other"), step=None).experiment
    assert not vars(other.model)["enhanced_mask_decoder"]
    export_hf(tmp_path / "ours", tmp_path / "theirs")
    import_hf(tmp_path / "theirs", tmp_path / "again")
    assert_equal_arrays(saved_arrays(tmp_path / "again"), saved_arrays(tmp_path / "ours"))


def test_what_is_imported_is_a_checkpoint(tmp_path):
    golden, source = release(tmp_path, "bert")
    import_hf(source, tmp_path / "ours", dtype="float32")
    (tmp_path / "ours").rename(tmp_path / "moved")
    loaded = Loaded.from_checkpoint(str(tmp_path / "moved"), step=None)
    experiment = loaded.experiment
    assert experiment.objective == MaskedLM(mask_id=4)
    assert (experiment.data.layout, experiment.data.inputs_length) == (layouts.Encoder(), 16)
    assert loaded.vocabulary.encode("b a") == [6, 5]
    table = flatten(loaded.params)["model/embedding/token"]
    name = "bert.embeddings.word_embeddings.weight"
    np.testing.assert_array_equal(table, golden.weights[name].astype(np.float32))
    assert {leaf.dtype for leaf in flatten(loaded.params).values()} == {jnp.dtype("float32")}


@pytest.mark.slow
def test_a_discriminator_keeps_its_head(tmp_path):
    _, source = release(tmp_path, "electra_discriminator")
    import_hf(source, tmp_path / "ours")
    loaded = Loaded.from_checkpoint(str(tmp_path / "ours"), step=None)
    assert loaded.experiment.objective == NoLoss()
    assert loaded.experiment.heads == (Rtd(kind="electra"),)
    assert "heads/rtd/out/kernel" in flatten(loaded.params)


def test_a_directory_without_a_tokenizer_leaves_nothing_behind(tmp_path):
    _, source = release(tmp_path, "bert")
    (source / "vocab.txt").unlink()
    with pytest.raises(InputError, match="contains none of the supported tokenizer files"):
        import_hf(source, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


def test_other_model_types_are_refused_with_all_that_there_are(tmp_path):
    _, source = release(tmp_path, "bert")
    (source / "config.json").write_text('{"model_type": "bart"}')
    with pytest.raises(
        InputError, match=r"'bart' is not supported, only t5, mt5, umt5, bert, .*electra"
    ):
        import_hf(source, tmp_path / "ours")


MODEL = BertConfig(vocab_size=20, d_model=4, d_ff=6, num_heads=2, num_layers=1, max_positions=8)


def experiment(objective, **changes):
    return Experiment(
        model=MODEL.replace(**changes),
        objective=objective,
        data=Data(task="tasks.encoder:documents", vocabulary="v", layout=layouts.Encoder()),
        optimizer=Adafactor(schedule=Constant(value=1e-3)),
        steps=1,
    )


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        (MaskedLM(mask_id=4), Mlm()),
        (NoLoss(), None),
    ],
)
def test_the_head_is_the_objectives(objective, expected):
    assert exported_head(experiment(objective), FAMILY, None, where="here") == expected


def test_one_of_several_heads():
    of = dataclasses.replace(experiment(MaskedLM(mask_id=4)), heads=(Classifier(), Span()))
    assert exported_head(of, FAMILY, None, where="here") == Mlm()
    assert exported_head(of, FAMILY, "span", where="here") == Span()
    assert exported_head(of, FAMILY, "none", where="here") is None
    with pytest.raises(
        InputError,
        match="has no head 'rtd' that transformers supports; its supported heads are mlm, cl",
    ):
        exported_head(of, FAMILY, "rtd", where="here")
    of = dataclasses.replace(of, objective=NoLoss())
    with pytest.raises(InputError, match=r"classifier, span, .* select a head with --head NAME"):
        exported_head(of, FAMILY, None, where="here")
    alone = dataclasses.replace(of, heads=(Span(),))
    assert exported_head(alone, FAMILY, None, where="here") == Span()


def test_a_custom_head_is_left_out(caplog):
    class Mean(Classifier):
        def build(self, model, *, rngs):
            raise NotImplementedError

    of = dataclasses.replace(experiment(NoLoss()), heads=(Mean(),))
    assert exported_head(of, FAMILY, None, where="here") is None
    assert caplog.messages == [
        "here: skipping head classifier, which transformers does not support"
    ]


def params(of):
    rng = np.random.default_rng(0)
    found = {}
    for path, leaf in flatten(learner_of(of).shapes).items():
        array = rng.normal(size=leaf.shape).astype(np.float32)
        found[path] = LazyArray(array.shape, array.dtype, lambda array=array: array)
    return found


OPTIONS = {"cast": lambda array: array, "model_type": None, "kept": {}, "where": "here"}


@pytest.fixture
def wordpiece(tmp_path):
    _, source = release(tmp_path, "bert")
    return load_vocabulary(source)


def test_a_head_that_transformers_lacks_is_left_out(wordpiece, caplog):
    of = dataclasses.replace(experiment(NoLoss()), heads=(Rtd(kind="deberta"),))
    with caplog.at_level(logging.WARNING):
        made = export_of(of, params(of), wordpiece, **OPTIONS)
    assert "skipping head rtd" in caplog.text
    assert made.config["architectures"] == ["BertModel"]
    assert "embeddings.word_embeddings.weight" in made.tensors
    # A model without token types gets one.
    assert made.config["type_vocab_size"] == 1
    assert (made.tensors["embeddings.token_type_embeddings.weight"].read() == 0).all()
    assert set(made.files) == {"vocab.txt", "tokenizer_config.json"}


def test_what_is_exported_is_what_is_read(wordpiece):
    class Twice(Difference):
        def read(self, stored):
            return {**stored, self.path: 2 * stored[self.path]}

    class Doubled(NoLoss):
        def views(self, model, prefix):
            return (Twice("model/embedding/token", base="model/embedding/token"),)

    of = experiment(Doubled())
    arrays = params(of)
    made = export_of(of, arrays, wordpiece, **OPTIONS)
    np.testing.assert_array_equal(
        made.tensors["embeddings.word_embeddings.weight"].read(),
        2 * arrays["model/embedding/token"].read(),
    )


GENERATOR = MODEL.replace(num_layers=2, embedding_size=4, d_model=2, d_ff=4, num_heads=1)


@pytest.mark.parametrize("sharing", ["es", "nes", "gdes"])
def test_both_parts_of_replaced_token_detection(wordpiece, sharing):
    of = experiment(Electra(mask_id=4, generator=GENERATOR, sharing=sharing))
    arrays = params(of)
    model = export_of(of, arrays, wordpiece, **OPTIONS)
    generator = export_of(of, arrays, wordpiece, part="generator", **OPTIONS)
    assert model.config["architectures"] == ["ElectraForPreTraining"]
    assert generator.config["architectures"] == ["ElectraForMaskedLM"]
    assert (model.config["hidden_size"], generator.config["hidden_size"]) == (4, 2)
    ours = arrays["model/embedding/token"].read()
    theirs = ours if sharing == "es" else arrays["objective/generator/embedding/token"].read()
    name = "electra.embeddings.word_embeddings.weight"
    np.testing.assert_array_equal(generator.tensors[name].read(), theirs)
    whole = ours + theirs if sharing == "gdes" else ours
    np.testing.assert_array_equal(model.tensors[name].read(), whole)
    np.testing.assert_array_equal(
        model.tensors["discriminator_predictions.dense_prediction.weight"].read(),
        arrays["heads/rtd/out/kernel"].read().T,
    )
    np.testing.assert_array_equal(
        generator.tensors["generator_lm_head.bias"].read(),
        arrays["objective/generator_head/bias"].read(),
    )


def test_tables_are_added_before_they_are_rounded(wordpiece):
    of = experiment(Electra(mask_id=4, generator=GENERATOR, sharing="gdes"))
    arrays = params(of)
    for path, value in (("model", 0.0001), ("objective/generator", 1.0039)):
        path += "/embedding/token"
        table = np.full(arrays[path].shape, value, np.float32)
        arrays[path] = LazyArray(table.shape, table.dtype, lambda table=table: table)

    def rounded(array):
        wanted = np.dtype(jnp.bfloat16)
        return LazyArray(array.shape, wanted, lambda: array.read().astype(wanted))

    made = export_of(of, arrays, wordpiece, **{**OPTIONS, "cast": rounded})
    got = made.tensors["electra.embeddings.word_embeddings.weight"].read()
    assert (got == np.float32(1.0078125)).all()


def test_other_objectives_have_no_generator(wordpiece):
    of = experiment(MaskedLM(mask_id=4))
    with pytest.raises(InputError, match="only checkpoints of objective Electra have one"):
        export_of(of, {}, wordpiece, part="generator", **OPTIONS)


def test_a_sentencepiece_vocabulary_is_not_written(tiny_vocabulary, caplog):
    of = experiment(MaskedLM(mask_id=4), vocab_size=400)
    vocabulary = load_vocabulary(tiny_vocabulary)
    with caplog.at_level(logging.WARNING):
        made = export_of(of, params(of), vocabulary, **OPTIONS)
    assert "cannot be converted to transformers" in caplog.text
    assert made.files == {}


def test_other_models_are_refused(wordpiece):
    names = ("vocab_size", "d_model", "d_ff", "num_heads", "num_layers")
    other = EncoderConfig(**{name: getattr(MODEL, name) for name in names})
    of = experiment(NoLoss())
    of = Experiment(
        model=other, objective=of.objective, data=of.data, optimizer=of.optimizer, steps=1
    )
    with pytest.raises(
        InputError, match="checkpoint here is of class EncoderConfig, which transformers"
    ):
        export_of(of, {}, wordpiece, **OPTIONS)
