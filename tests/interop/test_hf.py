"""Weights of Hugging Face directories: transformers' own numbers from tests/golden, and errors."""

import functools
import json

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from scripts import goldens
from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import unflatten
from t5x_lite.decoding.generate import decode
from t5x_lite.decoding.sampling import Decoding
from t5x_lite.interop.hf import common_dtype, model_pieces, read_hf, table, their_tensors
from t5x_lite.interop.rules import LazyArray
from t5x_lite.interop.tensor_files import read_safetensors, write_safetensors
from t5x_lite.models.published import t5_1_1_small, t5_small
from t5x_lite.nn.slots import bind, shapes
from t5x_lite.objectives.learner import Bound
from t5x_lite.objectives.likelihood import Seq2Seq


@functools.cache
def compiled(config):
    """(params, batch) -> logits, loss; variants that differ by name alone share it."""
    graphdef, _, _ = shapes(lambda rngs: Bound(config, Seq2Seq(z_loss=0.0), rngs=rngs))

    @jax.jit
    def run(params, batch):
        learner = bind(graphdef, {"model": params})
        logits = learner.model(
            batch["encoder_input_tokens"],
            batch["decoder_input_tokens"],
            encoder_segment_ids=batch.get("encoder_segment_ids"),
            decoder_segment_ids=batch.get("decoder_segment_ids"),
        )
        return logits, learner(batch).value()

    return run


def params_of(checkpoint):
    flat = {path: jnp.asarray(checkpoint.array(path), jnp.float32) for path in checkpoint.shapes}
    return unflatten(flat)


def greedy(run, params, batch):
    """Tokens one after another by the whole decoder: what a cache must equal."""
    rows = len(batch["encoder_input_tokens"])
    tokens = np.zeros((rows, goldens.NEW_TOKENS), np.int32)
    done = np.zeros(rows, bool)
    for i in range(goldens.NEW_TOKENS):
        shifted = np.pad(tokens[:, :-1], ((0, 0), (1, 0)))
        logits, _ = run(params, {**batch, "decoder_input_tokens": shifted})
        tokens[:, i] = np.where(done, 0, np.argmax(np.asarray(logits)[:, i], axis=-1))
        done |= tokens[:, i] == 1
    return tokens


@pytest.mark.parametrize("variant", goldens.VARIANTS)
def test_numbers_are_those_of_transformers(release, variant):
    golden, directory = release(variant)
    checkpoint = read_hf(directory)
    run, params = compiled(checkpoint.config), params_of(checkpoint)
    batch = goldens.random_batch(checkpoint.config.vocab_size)
    logits, loss = run(params, batch)
    real = batch["decoder_target_tokens"] > 0
    np.testing.assert_allclose(np.asarray(logits)[real], golden.logits[real], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(loss, golden.loss, rtol=1e-5)
    np.testing.assert_array_equal(greedy(run, params, batch), golden.greedy)


@pytest.mark.parametrize("variant", ["t5", "umt5"])
@pytest.mark.slow
def test_packed_rows_have_the_numbers_of_separate_ones(release, variant):
    golden, directory = release(variant)
    checkpoint = read_hf(directory)
    batch = goldens.random_batch(checkpoint.config.vocab_size)
    logits, loss = compiled(checkpoint.config)(params_of(checkpoint), goldens.packed(batch))
    real = batch["decoder_target_tokens"] > 0
    np.testing.assert_allclose(
        np.asarray(logits)[0, : real.sum()], golden.logits[real], rtol=1e-4, atol=1e-4
    )
    np.testing.assert_allclose(loss, golden.loss, rtol=1e-5)


@functools.cache
def beam_search(config):
    graphdef, _, _ = shapes(lambda rngs: config.build(rngs=rngs))
    how = {"num_beams": goldens.NUM_BEAMS, "num_return": goldens.NUM_BEAMS, "length_rule": "hf"}
    decoding = Decoding(max_decode_length=goldens.NEW_TOKENS, **how)
    return jax.jit(lambda params, inputs: decode(bind(graphdef, params), inputs, decoding=decoding))


@pytest.mark.gate("t5")
@pytest.mark.parametrize("variant", goldens.VARIANTS)
@pytest.mark.slow
def test_beams_are_those_of_transformers(release, variant):
    golden, directory = release(variant)
    checkpoint = read_hf(directory)
    inputs = goldens.random_batch(golden.config["vocab_size"])["encoder_input_tokens"]
    tokens, scores = beam_search(checkpoint.config)(params_of(checkpoint), inputs)
    np.testing.assert_array_equal(tokens, golden.beams)
    np.testing.assert_allclose(scores, golden.beam_scores, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("variant", goldens.VARIANTS)
@pytest.mark.slow
def test_their_tensors_come_back_bit_for_bit(release, variant):
    golden, directory = release(variant)
    checkpoint = read_hf(directory)
    ours = {
        path: LazyArray(
            shape, checkpoint.dtype(path), functools.partial(checkpoint.array, path)
        )
        for path, shape in checkpoint.shapes.items()
    }  # fmt: skip
    theirs = their_tensors(checkpoint.config, ours, where="w")
    assert set(theirs) == set(golden.weights)
    for name, array in theirs.items():
        assert (array.shape, array.dtype) == (golden.weights[name].shape, ml_dtypes.bfloat16)
        np.testing.assert_array_equal(array.read(), golden.weights[name])
    assert common_dtype(theirs.values()) == "bfloat16"
    ours.pop("encoder/final_norm/scale")
    with pytest.raises(InputError, match="missing: encoder/final_norm/scale"):
        their_tensors(checkpoint.config, ours, where="w")


def test_the_table_names_every_array_of_every_variant():
    for config in (
        t5_small(),
        t5_1_1_small(),
        t5_1_1_small(relative_bias_per_layer=True, num_decoder_layers=3),
    ):
        ours, wanted = model_pieces(config)
        assert {rule.ours for rule in table(config)} == set(ours)
        assert len({piece.name for piece in wanted}) == len(wanted)


def change(directory, *, config=None, drop=(), **arrays):
    """Writes the directory anew with other fields and tensors."""
    path = directory / "config.json"
    content = {**json.loads(path.read_text()), **(config or {})}
    path.write_text(json.dumps(content))
    file = directory / "model.safetensors"
    tensors = {name: np.array(a) for name, a in read_safetensors(file).items() if name not in drop}
    tensors |= {name.replace("__", "."): array for name, array in arrays.items()}
    lazy = {n: LazyArray(a.shape, a.dtype, lambda a=a: a) for n, a in tensors.items()}
    write_safetensors(file, lazy)
    return tensors


def arrays_of(directory):
    checkpoint = read_hf(directory)
    return checkpoint.config, {path: checkpoint.array(path) for path in checkpoint.shapes}


V5 = {"transformers_version": "5.23.0", "tie_word_embeddings": True}


@pytest.mark.parametrize(
    ("variant", "config", "tied"),
    [
        ("t5", {}, True),
        ("t5", V5, True),
        ("t5", {**V5, "scale_decoder_outputs": False}, False),
        ("t5", {"transformers_version": "5.0", "tie_word_embeddings": False}, False),
    ],
)
def test_an_output_that_is_the_embedding(release, variant, config, tied):
    _, directory = release(variant)
    for copies in ({}, {"lm_head__weight": None, "encoder__embed_tokens__weight": None}):
        shared = np.array(read_safetensors(directory / "model.safetensors")["shared.weight"])
        change(directory, config=config, **dict.fromkeys(copies, shared))
        found, arrays = arrays_of(directory)
        assert found.tie_embeddings == tied
        np.testing.assert_array_equal(arrays["token_embedding/table"], shared)
        if not tied:
            np.testing.assert_array_equal(arrays["lm_head/kernel"], shared.T)


def test_a_head_that_transformers_scales_is_scaled(release):
    golden, directory = release("umt5")
    change(directory, config=V5)  # transformers 5 writes so what it read of a release
    config, arrays = arrays_of(directory)
    assert not config.tie_embeddings
    head = golden.weights["lm_head.weight"].astype(np.float32).T / np.float32(4)  # sqrt(d_model)
    assert arrays["lm_head/kernel"].dtype == np.float32
    np.testing.assert_array_equal(arrays["lm_head/kernel"], head)


def test_an_embedding_under_another_name(release):
    golden, directory = release("t5")
    change(
        directory,
        drop=["shared.weight"],
        encoder__embed_tokens__weight=golden.weights["shared.weight"],
    )
    _, arrays = arrays_of(directory)
    np.testing.assert_array_equal(arrays["token_embedding/table"], golden.weights["shared.weight"])


def test_a_tensor_that_no_model_uses(release):
    _, directory = release("t5")
    name = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    change(directory, **{name: np.ones((32, 3), np.float32)})
    read_hf(directory)


def test_layers_of_several_dtypes(release):
    _, directory = release("t5")
    name = "encoder.block.1.layer.1.DenseReluDense.wo.weight"  # transformers keeps wo in float32
    wide = np.full((16, 24), 1 + 2**-20, np.float32)
    change(directory, **{name: wide})
    _, arrays = arrays_of(directory)
    found = arrays["encoder/layers/mlp/wo/kernel"]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found[1], wide.T)
    assert arrays["decoder/layers/mlp/wo/kernel"].dtype == ml_dtypes.bfloat16


HEAD = np.ones((400, 16), ml_dtypes.bfloat16)
NORM = "encoder.final_layer_norm.weight"


@pytest.mark.parametrize(
    ("variant", "changes", "message"),
    [
        ("t5", {"drop": [NORM]}, f"missing: {NORM}"),
        ("t5", {"extra": np.ones(1, np.float32)}, "unexpected: extra"),
        ("t5_1_1", {"drop": ["lm_head.weight"]}, r"missing: lm_head\.weight"),
        ("t5_1_1", {"drop": ["shared.weight"]}, r"missing: shared\.weight"),
        ("t5", {"lm_head__weight": HEAD}, r"lm_head\.weight differs from shared\.weight"),
        (
            "t5",
            {"decoder__embed_tokens__weight": HEAD},
            "separate embeddings of encoder and decoder are not",
        ),
        ("t5", {NORM: np.ones(17, np.float32)}, r"has shape \(17,\), .* config requires \(16,\)"),
        ("t5", {"config": {"vocab_size": 512}}, r"shared\.weight has shape \(400, 16\)"),
        ("t5", {NORM: np.ones(16, np.int8)}, "has dtype int8, but weights"),
    ],
)
def test_tensors_that_do_not_fit(release, variant, changes, message):
    _, directory = release(variant)
    change(directory, **changes)
    with pytest.raises(InputError, match=message) as error:
        read_hf(directory)
    assert str(error.value).startswith(f"{directory / 'model.safetensors'}: ")
    assert "\n" not in str(error.value)


def test_more_layers_than_tensors(release):
    _, directory = release("t5")
    change(directory, config={"num_decoder_layers": (1 << 31) - 1})
    with pytest.raises(
        InputError,
        match=r"config\.json: config field num_decoder_layers is 2147483647, but the file has",
    ):
        read_hf(directory)


def test_weights_that_are_no_numbers(release):
    golden, directory = release("t5")
    scale = golden.weights[NORM].copy()
    scale[3] = np.nan
    change(directory, **{NORM: scale})
    checkpoint = read_hf(directory)
    with pytest.raises(InputError, match=rf"{NORM} holds 1 of 16 weights that are NaN"):
        checkpoint.array("encoder/final_norm/scale")
