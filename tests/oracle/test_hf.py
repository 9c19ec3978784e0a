"""Hugging Face directories against transformers itself: numbers, forms of files, tokenizers."""

import functools
import json
import re

import flax.serialization
import jax
import numpy as np
import pytest

from scripts import goldens
from t5x_lite.commands.weights import export_hf, import_hf
from t5x_lite.data.vocabularies.byte_level import Bytes
from t5x_lite.data.vocabularies.loading import SentencePiece
from t5x_lite.inference.loading import Loaded
from t5x_lite.interop.tokenizers import write_tokenizer
from t5x_lite.nn.slots import bind, shapes
from t5x_lite.objectives.learner import Bound
from t5x_lite.objectives.likelihood import Seq2Seq
from tests.arrays import saved_arrays

pytestmark = pytest.mark.oracle
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


@functools.cache
def compiled(config):
    graphdef, _, _ = shapes(lambda rngs: Bound(config, Seq2Seq(z_loss=0.0), rngs=rngs))

    @jax.jit
    def run(params, batch):
        learner = bind(graphdef, params)
        logits = learner.model(
            batch["encoder_input_tokens"],
            batch["decoder_input_tokens"],
            encoder_segment_ids=batch.get("encoder_segment_ids"),
            decoder_segment_ids=batch.get("decoder_segment_ids"),
        )
        return logits, learner(batch).value()

    return run


def with_tokenizer(directory, config, vocabulary):
    if config.get("tokenizer_class") == "ByT5Tokenizer":
        transformers.ByT5Tokenizer().save_pretrained(directory)
    else:
        (directory / "spiece.model").write_bytes(vocabulary.read_bytes())


@pytest.fixture
def release(tmp_path, tiny_vocabulary):
    """A directory of a variant with random float32 weights, and its model."""

    def write(variant):
        config = goldens.VARIANTS[variant]
        directory = tmp_path / variant
        goldens.save(goldens.random_model(config, seed=5), config, directory)
        with_tokenizer(directory, config, tiny_vocabulary)
        return directory, goldens.load(directory)

    return write


def check_numbers(directory, model):
    """Logits and loss of what was imported, padded and packed, against the model's."""
    loaded = Loaded.from_checkpoint(str(directory), step=None)
    config = loaded.experiment.model
    run = compiled(config)
    batch = goldens.random_batch(config.vocab_size)
    real = batch["decoder_target_tokens"] > 0
    theirs, their_loss = goldens.compute(model, batch)
    logits, loss = run(loaded.params, batch)
    np.testing.assert_allclose(np.asarray(logits)[real], theirs[real], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(loss, their_loss, rtol=1e-5)
    logits, loss = run(loaded.params, goldens.packed(batch))
    np.testing.assert_allclose(
        np.asarray(logits)[0, : real.sum()], theirs[real], rtol=1e-4, atol=1e-4
    )
    np.testing.assert_allclose(loss, their_loss, rtol=1e-5)


def check_equal(first, second):
    ours, others = saved_arrays(first), saved_arrays(second)
    assert ours.keys() == others.keys()
    for path, array in ours.items():
        np.testing.assert_array_equal(array, others[path], err_msg=path)


@pytest.mark.parametrize("variant", goldens.VARIANTS)
def test_in_and_out_keeps_the_numbers(release, tmp_path, variant):
    source, model = release(variant)
    import_hf(source, tmp_path / "ours")
    check_numbers(tmp_path / "ours", model)
    export_hf(tmp_path / "ours", tmp_path / "theirs")
    back = goldens.load(tmp_path / "theirs")
    assert type(back) is type(model)
    batch = goldens.random_batch(model.config.vocab_size)
    for array, other in zip(
        goldens.compute(model, batch), goldens.compute(back, batch), strict=True
    ):
        np.testing.assert_array_equal(array, other)
    import_hf(tmp_path / "theirs", tmp_path / "again")
    check_equal(tmp_path / "again", tmp_path / "ours")


@pytest.mark.parametrize("variant", ["t5", "t5_1_1", "mt5", "umt5"])
def test_what_transformers_5_saves(release, tmp_path, tiny_vocabulary, variant):
    _, model = release(variant)
    if variant == "umt5":
        model.config.tie_word_embeddings = True  # as it is loaded: the logits are scaled
    model.save_pretrained(tmp_path / "saved")
    with_tokenizer(tmp_path / "saved", {}, tiny_vocabulary)
    import_hf(tmp_path / "saved", tmp_path / "ours")
    check_numbers(tmp_path / "ours", model)


@pytest.mark.parametrize("variant", ["t5_1_1", "mt5", "umt5"])
def test_a_fresh_model_of_transformers_5_is_tied(tmp_path, tiny_vocabulary, variant):
    config = {**goldens.VARIANTS[variant], "tie_word_embeddings": True}
    model = goldens.random_model(config, seed=6)
    assert model.lm_head.weight is model.shared.weight
    if variant == "t5_1_1":
        model.config.scale_decoder_outputs = False
    model.save_pretrained(tmp_path / "saved")
    with_tokenizer(tmp_path / "saved", {}, tiny_vocabulary)
    import_hf(tmp_path / "saved", tmp_path / "ours")
    check_numbers(tmp_path / "ours", model)


def flax_tree(model):
    """The names and layouts of transformers' Flax models, which version 5 no longer has."""
    tree = {}
    linear = {name for name, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
    embeddings = {name for name, m in model.named_modules() if isinstance(m, torch.nn.Embedding)}
    for name, weight in goldens.own_weights(model, {"tie_word_embeddings": False}).items():
        module, _, last = name.rpartition(".")
        array = weight.numpy()
        if module in linear:
            last, array = "kernel", array.T.copy()
        elif module in embeddings:
            last = "embedding"
        node = tree
        for part in module.split("."):
            node = node.setdefault(part, {})
        node[last] = array
    return tree


@pytest.mark.parametrize("form", ["bin", "bin shards", "safetensors shards", "flax"])
def test_other_forms_of_files(release, tmp_path, tiny_vocabulary, form):
    source, model = release("t5_1_1")
    other = tmp_path / "other"
    if form == "safetensors shards":
        model.save_pretrained(other, max_shard_size="20KB")
        assert len(list(other.glob("model-*.safetensors"))) > 2
    else:
        other.mkdir()
    (other / "config.json").write_bytes((source / "config.json").read_bytes())
    with_tokenizer(other, {}, tiny_vocabulary)
    if form == "bin":
        torch.save(model.state_dict(), other / "pytorch_model.bin")
    elif form == "bin shards":
        weights = list(model.state_dict().items())
        names = [f"pytorch_model-{i:05d}-of-00002.bin" for i in (1, 2)]
        shards = {names[0]: dict(weights[:20]), names[1]: dict(weights[20:])}
        for name, shard in shards.items():
            torch.save(shard, other / name)
        weight_map = {key: name for name, shard in shards.items() for key in shard}
        index = {"metadata": {}, "weight_map": weight_map}
        (other / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    elif form == "flax":
        content = flax.serialization.msgpack_serialize(flax_tree(model))
        (other / "flax_model.msgpack").write_bytes(content)
    import_hf(source, tmp_path / "ours")
    import_hf(other, tmp_path / "others")
    check_equal(tmp_path / "ours", tmp_path / "others")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_dtypes_of_torch(release, tmp_path, dtype):
    source, model = release("t5")
    for file in ("model.safetensors",):
        (source / file).unlink()
    torch.save(model.to(getattr(torch, dtype)).state_dict(), source / "pytorch_model.bin")
    import_hf(source, tmp_path / "ours")
    kept = {array.dtype.name for array in saved_arrays(tmp_path / "ours").values()}
    assert kept == {"float32" if dtype == "float64" else dtype}
    check_numbers(tmp_path / "ours", model.float())


TEXTS = ["Hello, world! 123", "été <extra_id_0> and <extra_id_1>", "", "a  b"]


@pytest.mark.parametrize("variant", ["t5", "byt5"])
def test_tokenizers_have_the_same_ids(release, tmp_path, english_lines, variant):
    source, _ = release(variant)
    import_hf(source, tmp_path / "ours")
    vocabulary = Loaded.from_checkpoint(str(tmp_path / "ours"), step=None).vocabulary
    export_hf(tmp_path / "ours", tmp_path / "theirs")
    # A run of one character has several segmentations of the same score.
    texts = TEXTS + [line for line in english_lines[:200] if not re.search(r"(\W)\1", line)]
    for directory in (source, tmp_path / "theirs"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
        assert len(tokenizer) == vocabulary.size
        for text, ids in zip(texts, vocabulary.encode_batch(texts), strict=True):
            assert tokenizer(text).input_ids == [*ids, vocabulary.eos_id], text
    # What transformers 5 writes has no spiece.model.
    tokenizer.save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved" / "spiece.model").exists()
    for name in ("spiece.model", "tokenizer_config.json"):
        (tmp_path / "theirs" / name).unlink(missing_ok=True)
    for path in (tmp_path / "saved").iterdir():
        path.rename(tmp_path / "theirs" / path.name)
    import_hf(tmp_path / "theirs", tmp_path / "again")
    again = Loaded.from_checkpoint(str(tmp_path / "again"), step=None).vocabulary
    assert again.size == vocabulary.size
    assert again.encode_batch(texts) == vocabulary.encode_batch(texts)


def test_text_has_the_ids_of_their_tokenizers(tmp_path, tiny_vocabulary):
    rng = np.random.default_rng(0)
    words = ["<extra_id_0>", "<extra_id_99>", "<extra_id_125>", "</s>", "<pad>", "<unk>", "<s>"]
    words += [" ", "  ", "\n", "the", "a", "<", ">", ".", "\u00e9", "<extra_id_"]
    texts = ["".join(rng.choice(words, size=size)) for size in rng.integers(0, 9, size=300)]
    vocabularies = {
        "pieces": SentencePiece(tiny_vocabulary, layout="hf"),
        "bytes": Bytes(layout="hf", extra_ids=125),
    }
    for name, vocabulary in vocabularies.items():
        (tmp_path / name).mkdir()
        write_tokenizer(vocabulary, tmp_path / name)
        (tmp_path / name / "config.json").write_text('{"model_type": "t5"}')
        tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / name)
        found = [tokenizer(text, add_special_tokens=False).input_ids for text in texts]
        assert vocabulary.encode_batch(texts) == found


FORMS = ("gelu", "silu", "gated-relu", "gated-silu", "gated-swish")
UNUSUAL = {
    "dropout_rate": 0.2,
    "classifier_dropout": 0.3,
    "layer_norm_epsilon": 1e-5,
    "task_specific_params": {"summarization": {"prefix": "summarize: ", "num_beams": 4}},
    "n_positions": 512,
    "problem_type": "multi_label_classification",
}
DIFFERENCES = {
    "transformers_version": "the version that wrote a directory; t5x_lite is not transformers",
    "torch_dtype": "the name of dtype before transformers 5",
    "tokenizer_class": "the tokenizer that export writes beside the model",
    "decoder_start_token_id": "the id of the padding, which transformers leaves to the generation",
    "tie_word_embeddings": "transformers 5 writes true for every T5; 4 needs the truth",
}


@pytest.mark.parametrize(
    "form",
    [
        form if form == "gated-silu" else pytest.param(form, marks=pytest.mark.exhaustive)
        for form in FORMS
    ],
)
def test_other_feed_forward_blocks(tmp_path, tiny_vocabulary, form):
    """UL2 and Flan-UL2 have gated-silu; config.json keeps its fields on the way."""
    config = {**goldens.VARIANTS["t5_1_1"], **UNUSUAL, "feed_forward_proj": form}
    config = {k: v for k, v in config.items() if k not in ("dense_act_fn", "is_gated_act")}
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**config)).eval()
    model.save_pretrained(tmp_path / "source")
    with_tokenizer(tmp_path / "source", config, tiny_vocabulary)
    import_hf(tmp_path / "source", tmp_path / "ours")
    check_numbers(tmp_path / "ours", model)
    export_hf(tmp_path / "ours", tmp_path / "back")
    import_hf(tmp_path / "back", tmp_path / "again")
    check_equal(tmp_path / "ours", tmp_path / "again")
    found, expected = (
        json.loads((tmp_path / name / "config.json").read_text()) for name in ("back", "source")
    )
    missing = object()
    names = (found.keys() | expected.keys()) - DIFFERENCES.keys()
    both = {name: (expected.get(name, missing), found.get(name, missing)) for name in names}
    assert {name: pair for name, pair in both.items() if pair[0] != pair[1]} == {}
