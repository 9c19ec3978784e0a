"""DeBERTa v2 and v3: transformers' own numbers from tests/golden, names and errors."""

import functools
import json
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scripts import encoder_goldens as goldens
from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import unflatten
from t5x_lite.interop.deberta import DEBERTA
from t5x_lite.interop.encoders import encoder_tensors, read_encoder
from t5x_lite.interop.rules import LazyArray
from t5x_lite.interop.tensor_files import read_safetensors
from t5x_lite.models.heads import MaskedLMHead, Mlm, Rtd
from t5x_lite.nn.slots import bind, shapes


def read(directory):
    path = directory / "config.json"
    return read_encoder(DEBERTA, directory, json.loads(path.read_text()), where=path)


def run(checkpoint, tokens, token_types):
    """Hidden states and the head's logits, of padded rows."""
    model = checkpoint.model
    encoder, _, _ = shapes(lambda rngs: model.build(rngs=rngs))
    head, _, _ = shapes(
        lambda rngs: MaskedLMHead(
            model.d_model,
            model.table_size,
            model.vocab_size,
            activation=model.activation,
            norm_epsilon=model.norm_epsilon,
            rngs=rngs,
        )
    )

    @jax.jit
    def forward(params):
        deberta, top = bind(encoder, params["model"]), bind(head, params["heads"]["mlm"])
        hidden = deberta.masked_lm_states(tokens, token_types=token_types)
        return hidden, top(hidden, deberta.tables()["token"])

    flat = {path: jnp.asarray(checkpoint.array(path), jnp.float32) for path in checkpoint.shapes}
    tokens, token_types = jnp.asarray(tokens), jnp.asarray(token_types)
    return forward(unflatten(flat))


def write(directory, config, weights):
    golden = goldens.Golden(config=config, weights=weights, hidden=np.zeros(0), logits=np.zeros(0))
    goldens.write_release(golden, directory)
    return directory


def written(checkpoint, *, where):
    """The tensors that an export writes, and its config.json."""
    arrays = {
        path: LazyArray(shape, checkpoint.dtype(path), functools.partial(checkpoint.array, path))
        for path, shape in checkpoint.shapes.items()
    }
    model, head = checkpoint.model, checkpoint.head
    config = DEBERTA.from_model(model, head, "deberta-v2")
    lazy = encoder_tensors(DEBERTA, model, head, arrays, model_type="deberta-v2", where=where)
    return {name: tensor.read() for name, tensor in lazy.items()}, config


@pytest.fixture
def release(tmp_path):
    """Writes a variant's directory, its tensors and fields changed, and returns it."""

    def make(variant, change=dict, **fields):
        golden = goldens.read(variant)
        target = tmp_path / f"{variant}_{len(list(tmp_path.iterdir()))}"
        return write(target, {**golden.config, **fields}, change(golden.weights))

    return make


@pytest.mark.parametrize("variant", goldens.DEBERTA)
def test_numbers_are_those_of_transformers(release, variant):
    golden = goldens.read(variant)
    checkpoint = read(release(variant))
    batch = goldens.random_batch(golden.config)
    hidden, logits = run(checkpoint, batch["tokens"], batch["token_types"])
    real = batch["real"]
    for ours, theirs in ((hidden, golden.hidden), (logits, golden.logits)):
        np.testing.assert_allclose(np.asarray(ours)[real], theirs[real], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("variant", goldens.DEBERTA)
def test_their_tensors_come_back_bit_for_bit(release, variant):
    golden, directory = goldens.read(variant), release(variant)
    checkpoint = read(directory)
    tensors, config = written(checkpoint, where=directory)
    theirs = read_safetensors(directory / "model.safetensors")
    copies = ("decoder.weight", "decoder.bias")
    theirs = {n: x for n, x in as_legacy(theirs).items() if not n.endswith(copies)}
    assert tensors.keys() == theirs.keys()
    for name, tensor in theirs.items():
        np.testing.assert_array_equal(tensors[name], tensor, err_msg=name)
    # transformers 4.57 loads a masked language model under legacy names alone.
    assert config["legacy"] is True
    ordered = {**golden.config, "pos_att_type": config["pos_att_type"], "legacy": True}
    assert {name: config[name] for name in golden.config} == ordered
    assert DEBERTA.to_model(directory, config) == checkpoint.model


def as_legacy(weights):
    """transformers' names of the masked language model's head, and its copies."""
    new = {}
    if not any(name.startswith("lm_predictions") for name in weights):
        return weights
    for name, weight in weights.items():
        name = name.replace("lm_predictions.lm_head.bias", "cls.predictions.bias")
        new[name.replace("lm_predictions.lm_head.", "cls.predictions.transform.")] = weight
    new["cls.predictions.decoder.bias"] = new["cls.predictions.bias"]
    new["cls.predictions.decoder.weight"] = new["deberta.embeddings.word_embeddings.weight"]
    return new


def test_both_names_of_the_head(release):
    first = read(release("deberta_v3"))
    second = read(release("deberta_v3", as_legacy, legacy=True))
    assert first.head == second.head == Mlm()
    assert first.shapes == second.shapes
    for path in first.shapes:
        np.testing.assert_array_equal(first.array(path), second.array(path), err_msg=path)


def as_discriminator(weights):
    """What a release of v3 holds."""
    rng = np.random.default_rng(0)
    shapes = {
        "dense.weight": (12, 12), "dense.bias": (12,), "LayerNorm.weight": (12,),
        "LayerNorm.bias": (12,), "classifier.weight": (1, 12), "classifier.bias": (1,),
    }  # fmt: skip
    head = {
        f"mask_predictions.{name}": rng.normal(size=shape).astype(np.float32)
        for name, shape in shapes.items()
    }
    table = {
        "deberta.embeddings.position_embeddings.weight": np.zeros((16, 12), np.float32),
        "deberta.embeddings.word_embeddings._weight": np.zeros((40, 12), np.float32),
    }
    return {**weights, **head, **table}


def test_a_discriminator_with_the_head_of_its_generator(release):
    checkpoint = read(release("deberta_v3", as_discriminator))
    assert checkpoint.head == Rtd(kind="deberta")
    assert not checkpoint.model.position_rows
    theirs = as_discriminator({})
    tensors, config = written(checkpoint, where="here")
    assert config["architectures"] == ["DebertaV2Model"]
    assert not any(name.startswith(("lm_predictions", "cls")) for name in tensors)
    for name in (name for name in theirs if name.startswith("mask_predictions")):
        np.testing.assert_array_equal(tensors[name], theirs[name])
    out = checkpoint.array("heads/rtd/out/kernel")
    np.testing.assert_array_equal(out, theirs["mask_predictions.classifier.weight"].T)


def test_the_enhanced_mask_decoder_has_a_table_of_positions(release, tmp_path):
    rng = np.random.default_rng(0)
    name = "deberta.embeddings.position_embeddings.weight"
    table = rng.normal(size=(16, 12)).astype(np.float32)
    directory = release(
        "deberta_v3", lambda weights: {**weights, name: table}, enhanced_mask_decoder=True
    )
    checkpoint = read(directory)
    assert vars(checkpoint.model)["enhanced_mask_decoder"]
    np.testing.assert_array_equal(checkpoint.array("model/embedding/position"), table)
    tensors, config = written(checkpoint, where=directory)
    np.testing.assert_array_equal(tensors[name], table)
    assert read(write(tmp_path / "again", config, tensors)).model == checkpoint.model


def test_a_table_of_positions_without_a_reader_is_of_an_enhanced_mask_decoder(release, caplog):
    name = "deberta.embeddings.position_embeddings.weight"
    table = np.random.default_rng(0).normal(size=(16, 12)).astype(np.float32)

    def with_table(weights):
        return {**weights, name: table}

    with caplog.at_level(logging.INFO):
        checkpoint = read(release("deberta_v3", with_table))
    assert vars(checkpoint.model)["enhanced_mask_decoder"]
    np.testing.assert_array_equal(checkpoint.array("model/embedding/position"), table)
    [message] = [message for message in caplog.messages if "enhanced" in message]
    assert "adding an enhanced mask decoder" in message
    plain = read(release("deberta_v3")).model
    assert read(release("deberta_v3", with_table, enhanced_mask_decoder=False)).model == plain
    with pytest.raises(InputError, match="position_embeddings"):
        read(release("deberta_v3", lambda weights: {**weights, name: table[:9]}))
    # The input has the positions already, or no head reads them.
    assert not vars(read(release("deberta_v2_other")).model)["enhanced_mask_decoder"]
    alone = release(
        "deberta_v3",
        lambda weights: {
            name.removeprefix("deberta."): weight
            for name, weight in with_table(weights).items()
            if name.startswith("deberta.")
        },
    )
    assert read(alone).model == plain


def test_an_encoder_alone_has_no_prefix_and_no_head(release):
    def change(weights):
        own = {name: w for name, w in weights.items() if name.startswith("deberta.")}
        return {name.removeprefix("deberta."): weight for name, weight in own.items()}

    whole, alone = read(release("deberta_v3")), read(release("deberta_v3", change))
    assert alone.head is None
    assert alone.shapes == {p: s for p, s in whole.shapes.items() if p.startswith("model/")}
    tensors, config = written(alone, where="here")
    assert config["architectures"] == ["DebertaV2Model"]
    assert tensors.keys() == change(goldens.read("deberta_v3").weights).keys()


def test_fields_in_other_forms(release):
    plain = read(release("deberta_v3")).model
    listed = read(release("deberta_v3", pos_att_type=["p2c", "c2p"], conv_groups=1)).model
    assert listed == plain == read(release("deberta_v3", max_relative_positions=0)).model
    assert vars(plain)["max_relative_positions"] is None
    assert vars(plain)["conv_activation"] == "tanh"


@pytest.mark.parametrize(
    ("change", "fields", "message"),
    [
        (dict, {"relative_attention": False}, "relative_attention must be true"),
        (dict, {"pos_att_type": "p2p|c2p"}, "terms c2p, p2c, each once"),
        (dict, {"pos_att_type": None}, "terms c2p, p2c, each once"),
        (dict, {"position_buckets": 100}, "log buckets need"),
        (
            dict,
            {"norm_rel_ebd": "rms"},
            "norm_rel_ebd 'rms' is not supported, only layer_norm, none",
        ),
        (dict, {"hidden_act": "silu"}, "hidden_act 'silu' is not supported, only"),
        (dict, {"hidden_act": ["gelu"]}, r"hidden_act \['gelu'\] is not supported, only"),
        (dict, {"conv_kernel_size": 3}, "missing.*encoder.conv.conv.weight"),
        (dict, {"conv_groups": 2}, "conv_groups 2 is not supported"),
        (dict, {"share_att_key": "yes"}, "share_att_key must be true or false, got 'yes'"),
        (dict, {"attention_head_size": 8}, "attention_head_size 8 is not supported"),
        (dict, {"hidden_size": "12"}, "hidden_size must be a whole number, got '12'"),
        (dict, {"enhanced_mask_decoder": True}, "missing.*position_embeddings"),
        (dict, {"quantization_config": {}}, "quantized"),
        (lambda weights: {**weights, "extra": np.ones(2)}, {}, "unexpected.*extra"),
        (
            lambda weights: {
                **as_legacy(weights),
                "cls.predictions.decoder.weight": np.ones((40, 12)),
            },
            {},
            "decoder.weight differs from",
        ),
    ],
)
def test_refuses(release, change, fields, message):
    with pytest.raises(InputError, match=message):
        read(release("deberta_v3", change, **fields))
