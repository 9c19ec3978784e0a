"""BERT, RoBERTa, XLM-R and ELECTRA: transformers' own numbers from tests/golden, and errors."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scripts import encoder_goldens as goldens
from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import unflatten
from t5x_lite.interop.encoders import BERT, encoder_tensors, read_encoder
from t5x_lite.interop.rules import LazyArray
from t5x_lite.interop.tensor_files import read_safetensors
from t5x_lite.models.encoder import BertConfig
from t5x_lite.models.heads import ElectraRtdHead, MaskedLMHead, Mlm, Rtd
from t5x_lite.nn.slots import bind, shapes


def read(directory):
    path = directory / "config.json"
    return read_encoder(BERT, directory, json.loads(path.read_text()), where=path)


@functools.cache
def compiled(model, head):
    """(params, batch) -> hidden states and the head's logits, of padded rows."""
    encoder, _, _ = shapes(lambda rngs: model.build(rngs=rngs))

    def build(rngs):
        if head.name == "rtd":
            return ElectraRtdHead(model.d_model, activation=model.activation, rngs=rngs)
        return MaskedLMHead(
            model.d_model,
            model.table_size,
            model.vocab_size,
            activation=model.activation,
            norm_epsilon=model.norm_epsilon,
            rngs=rngs,
        )

    graphdef, _, _ = shapes(build)

    @jax.jit
    def run(params, tokens, token_types):
        bert, top = bind(encoder, params["model"]), bind(graphdef, params["heads"][head.name])
        hidden = bert.masked_lm_states(tokens, token_types=token_types)
        table = () if head.name == "rtd" else (bert.tables()["token"],)
        return hidden, top(hidden, *table)

    return run


def params_of(checkpoint):
    flat = {path: jnp.asarray(checkpoint.array(path), jnp.float32) for path in checkpoint.shapes}
    return unflatten(flat)


@pytest.fixture
def release(tmp_path):
    """Writes a variant's directory and returns it with its golden."""

    def write(variant):
        golden = goldens.read(variant)
        goldens.write_release(golden, tmp_path / variant)
        return golden, tmp_path / variant

    return write


@pytest.mark.parametrize("variant", goldens.VARIANTS)
def test_numbers_are_those_of_transformers(release, variant):
    golden, directory = release(variant)
    checkpoint = read(directory)
    batch = goldens.random_batch(golden.config)
    run = compiled(checkpoint.model, checkpoint.head)
    hidden, logits = run(params_of(checkpoint), batch["tokens"], batch["token_types"])
    real = batch["real"]
    for ours, theirs in ((hidden, golden.hidden), (logits, golden.logits)):
        np.testing.assert_allclose(np.asarray(ours)[real], theirs[real], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("variant", goldens.VARIANTS)
def test_their_tensors_come_back_bit_for_bit(release, variant):
    golden, directory = release(variant)
    checkpoint = read(directory)
    arrays = {
        path: LazyArray(shape, checkpoint.dtype(path), functools.partial(checkpoint.array, path))
        for path, shape in checkpoint.shapes.items()
    }
    config = BERT.from_model(checkpoint.model, checkpoint.head, golden.config["model_type"])
    back = encoder_tensors(
        BERT,
        checkpoint.model,
        checkpoint.head,
        arrays,
        model_type=config["model_type"],
        where=directory,
    )
    theirs = read_safetensors(directory / "model.safetensors")
    assert back.keys() == theirs.keys()
    for name, tensor in theirs.items():
        np.testing.assert_array_equal(back[name].read(), tensor, err_msg=name)
    assert {name: config[name] for name in golden.config} == golden.config
    assert BERT.to_model(directory, config) == checkpoint.model


def rewrite(directory, change, **fields):
    """Changes a directory's tensors, and fields of its config.json."""
    path = directory / "model.safetensors"
    arrays = {name: np.array(value) for name, value in read_safetensors(path).items()}
    golden = goldens.Golden(
        config={**json.loads((directory / "config.json").read_text()), **fields},
        weights=change(arrays),
        hidden=np.zeros(0),
        logits=np.zeros(0),
    )
    target = directory.with_name("changed")
    goldens.write_release(golden, target)
    return target


def renamed(arrays, *pairs):
    result = {}
    for name, value in arrays.items():
        for old, new in pairs:
            name = name.replace(old, new)
        result[name] = value
    return result


def same(first, second):
    assert first.shapes == second.shapes
    for path in first.shapes:
        np.testing.assert_array_equal(first.array(path), second.array(path), err_msg=path)


def test_names_of_old_files_and_what_is_not_read(release):
    _, directory = release("bert")

    def change(arrays):
        old = renamed(
            arrays, ("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta")
        )
        table = old["bert.embeddings.word_embeddings.weight"]
        return {
            **old,
            "bert.embeddings.position_ids": np.arange(16)[None],
            "bert.pooler.dense.weight": np.zeros((12, 12), np.float32),
            "bert.pooler.dense.bias": np.zeros(12, np.float32),
            "cls.seq_relationship.weight": np.zeros((2, 12), np.float32),
            "cls.seq_relationship.bias": np.zeros(2, np.float32),
            "cls.predictions.decoder.weight": table,
            "cls.predictions.decoder.bias": old["cls.predictions.bias"],
        }

    same(read(rewrite(directory, change)), read(directory))


def test_an_encoder_alone_has_no_prefix_and_no_head(release):
    _, directory = release("roberta")

    def change(arrays):
        return renamed(
            {name: value for name, value in arrays.items() if name.startswith("roberta.")},
            ("roberta.", ""),
        )

    whole, alone = read(directory), read(rewrite(directory, change))
    assert (whole.head, alone.head) == (Mlm(), None)
    assert alone.shapes == {p: s for p, s in whole.shapes.items() if p.startswith("model/")}
    for path in alone.shapes:
        np.testing.assert_array_equal(alone.array(path), whole.array(path))


@pytest.mark.parametrize(
    ("change", "fields", "message"),
    [
        (dict, {"position_embedding_type": "relative_key"}, "position_embedding_type"),
        (dict, {"is_decoder": True}, "is_decoder True is not supported"),
        (dict, {"hidden_act": "silu"}, "hidden_act 'silu' is not supported, only"),
        (dict, {"hidden_size": None}, "hidden_size is missing"),
        (dict, {"hidden_size": "12"}, "hidden_size must be a whole number, got '12'"),
        (dict, {"num_attention_heads": 5}, "d_model must be a multiple of model.num_heads"),
        (dict, {"intermediate_size": 24}, "intermediate.dense.weight has shape"),
        (dict, {"num_hidden_layers": 3}, "missing.*encoder.layer.2"),
        (dict, {"quantization_config": {}}, "quantized"),
        (
            lambda arrays: {**arrays, "cls.predictions.decoder.weight": np.ones((40, 12))},
            {},
            "decoder.weight differs from",
        ),
        (lambda arrays: {**arrays, "extra": np.ones(2)}, {}, "unexpected.*extra"),
        (
            lambda arrays: {**arrays, "cls.predictions.bias": np.zeros(40, np.int32)},
            {},
            "cls.predictions.bias has dtype int32, but weights",
        ),
    ],
)
def test_refuses(release, change, fields, message):
    _, directory = release("bert")
    with pytest.raises(InputError, match=message):
        read(rewrite(directory, change, **fields))


def test_nan_is_refused_when_it_is_read(release):
    _, directory = release("bert")

    def change(arrays):
        arrays["cls.predictions.bias"][3] = np.nan
        return arrays

    checkpoint = read(rewrite(directory, change))
    with pytest.raises(InputError, match="bias holds 1 of 40 weights"):
        checkpoint.array("heads/mlm/bias")


SMALL = BertConfig(
    vocab_size=8, d_model=4, d_ff=6, num_heads=2, num_layers=1, token_types=2, max_positions=5
)


@pytest.mark.parametrize(
    ("model", "head", "earlier", "expected"),
    [
        (SMALL, None, None, "BertModel"),
        (SMALL, Mlm(), "electra", "ElectraForMaskedLM"),
        (SMALL, Rtd(kind="electra"), None, "ElectraForPreTraining"),
        (SMALL.replace(embedding_size=2), None, "bert", "ElectraModel"),
        (SMALL.replace(pad_id=1, position_offset=2), None, "bert", "RobertaModel"),
        (SMALL.replace(pad_id=1, position_offset=2), Mlm(), "xlm-roberta",
         "XLMRobertaForMaskedLM"),
    ],
)  # fmt: skip
def test_the_class_that_a_model_becomes(model, head, earlier, expected):
    assert BERT.from_model(model, head, earlier)["architectures"] == [expected]


@pytest.mark.parametrize(
    ("model", "head", "message"),
    [
        (SMALL.replace(positions="relative_bias"), None, "relative positions"),
        (SMALL.replace(position_offset=3), None, "begin at 3 .*, but must begin at 1"),
        (
            SMALL.replace(position_offset=1),
            Rtd(kind="electra"),
            "begin at 1 .*, but must begin at 0",
        ),
        (SMALL.replace(embedding_size=2, activation="relu"), Mlm(), "uses gelu"),
    ],
)
def test_models_that_transformers_lacks(model, head, message):
    with pytest.raises(InputError, match=message):
        BERT.from_model(model, head, None)


def test_a_model_without_token_types_gets_one_of_zeros():
    table = np.ones((8, 4), np.float32)
    arrays = {"model/embedding/token": LazyArray(table.shape, table.dtype, lambda: table)}
    assert BERT.fitted is not None
    model, fitted = BERT.fitted(SMALL.replace(token_types=0), arrays)
    assert model == SMALL.replace(token_types=1)
    np.testing.assert_array_equal(fitted["model/embedding/token_type"].read(), np.zeros((1, 4)))
    assert BERT.fitted(SMALL, arrays) == (SMALL, arrays)
