"""config.json in the forms of the releases, and what is refused."""

from pathlib import Path

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.interop.hf import Output, from_model, output, read_config, to_model
from t5x_lite.models.published import t5_1_1_small, t5_small

# google-t5/t5-small and google/t5-v1_1-small, without their task_specific_params.
T5_SMALL = {
    "architectures": ["T5ForConditionalGeneration"], "d_ff": 2048, "d_kv": 64, "d_model": 512,
    "decoder_start_token_id": 0, "dropout_rate": 0.1, "eos_token_id": 1, "initializer_factor": 1.0,
    "is_encoder_decoder": True, "layer_norm_epsilon": 1e-06, "model_type": "t5",
    "n_positions": 512, "num_heads": 8, "num_layers": 6, "output_past": True, "pad_token_id": 0,
    "relative_attention_num_buckets": 32, "vocab_size": 32128,
}  # fmt: skip
T5_1_1_SMALL = {
    **T5_SMALL, "d_ff": 1024, "num_heads": 6, "num_layers": 8, "num_decoder_layers": 8,
    "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False,
}  # fmt: skip
WHERE = Path("dir/config.json")


def test_the_releases_are_the_presets():
    assert to_model(WHERE, T5_SMALL) == t5_small()
    assert to_model(WHERE, T5_1_1_SMALL) == t5_1_1_small()


def test_fields_that_are_less_common():
    found = to_model(
        WHERE,
        {
            **T5_1_1_SMALL,
            "model_type": "umt5",
            "num_decoder_layers": 3,
            "dropout_rate": 0,
            "layer_norm_epsilon": 1e-5,
            "relative_attention_num_buckets": 16,
            "relative_attention_max_distance": 64,
            "dense_act_fn": "gelu_new",
        },
    )
    assert found.relative_bias_per_layer
    assert (found.num_encoder_layers, found.num_decoder_layers) == (8, 3)
    assert (found.dropout_rate, found.norm_epsilon) == (0.0, 1e-5)
    assert (found.relative_buckets, found.relative_max_distance) == (16, 64)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "bart"}, "model_type 'bart' is not supported, only t5, mt5, umt5"),
        ({"model_type": None}, "model_type None"),
        (
            {"feed_forward_proj": "gated-mish"},
            "feed_forward_proj 'gated-mish' is not supported, only relu",
        ),
        ({"is_gated_act": True}, "is_gated_act True is not supported, only False"),
        ({"tie_encoder_decoder": True}, "tie_encoder_decoder True is not supported"),
        ({"pruned_heads": {"0": [1]}}, "pruned_heads .* is not supported"),
        ({"dense_act_fn": "gelu"}, "dense_act_fn 'gelu' is not supported, only 'relu'"),
        ({"is_encoder_decoder": False}, "is_encoder_decoder False is not supported"),
        ({"pad_token_id": 3}, "pad_token_id 3 is not supported, only 0"),
        ({"quantization_config": {}}, "quantized weights"),
        ({"d_model": None}, "d_model is missing"),
        ({"d_model": 512.5}, "d_model must be a whole number, got 512.5"),
        ({"dropout_rate": "a"}, "dropout_rate must be a number, got 'a'"),
        ({"num_layers": 0}, "num_encoder_layers must be at least 1"),
        ({"dropout_rate": 2}, "dropout_rate must be in"),
        ({"model_type": ["t5"]}, "model_type .* is not supported, only"),
        ({"feed_forward_proj": ["relu"]}, "feed_forward_proj .* is not supported, only"),
        ({"d_model": 1 << 31}, "d_model is 2147483648, but must be below 2147483648"),
        ({"dropout_rate": 10**400}, "dropout_rate is 1000.*, but must be below"),
        ({"layer_norm_epsilon": float("nan")}, "layer_norm_epsilon is nan, but must be below"),
    ],
)
def test_configs_that_are_refused(changes, message):
    with pytest.raises(InputError, match=message) as error:
        to_model(WHERE, {**T5_SMALL, **changes})
    assert str(error.value).startswith("dir/config.json: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        # declared_tied, scaled, lenient
        ({"model_type": "t5"}, (True, True, False)),
        ({"model_type": "t5", "tie_word_embeddings": False}, (False, False, False)),
        (
            {"model_type": "t5", "transformers_version": "5.23.0", "tie_word_embeddings": True,
             "scale_decoder_outputs": False},
            (True, False, True),
        ),
        ({"model_type": "mt5", "transformers_version": "4.30"}, (True, True, False)),
        ({"model_type": "mt5", "transformers_version": "5.0.0.dev0"}, (True, False, True)),
        ({"model_type": "umt5", "transformers_version": "5.1"}, (True, True, True)),
        ({"model_type": "umt5", "tie_word_embeddings": False}, (False, False, False)),
    ],
)  # fmt: skip
def test_what_says_how_logits_come_about(config, expected):
    tied, scaled, lenient = expected
    assert output(config) == Output(declared_tied=tied, scaled=scaled, lenient=lenient)


@pytest.mark.parametrize("model_type", [None, "t5", "mt5"])
@pytest.mark.parametrize(
    "model",
    [t5_small(), t5_1_1_small(), t5_1_1_small(relative_bias_per_layer=True, dropout_rate=0.0)],
)
def test_what_is_written_is_read(model, model_type):
    config = from_model(model, model_type=model_type, dtype="bfloat16")
    assert to_model(WHERE, config) == model
    # A tied mt5's logits would not be scaled by transformers 5.
    if model.relative_bias_per_layer:
        assert config["model_type"] == "umt5"
    elif model.tie_embeddings:
        assert config["model_type"] == "t5"
    else:
        assert config["model_type"] == (model_type or "t5")


def test_shared_layers_have_no_config():
    with pytest.raises(InputError, match="layers shared by encoder and decoder"):
        from_model(t5_small(share_layers=True), model_type=None, dtype="float32")


def test_directories_without_a_config(tmp_path):
    with pytest.raises(InputError, match="gone: no such directory"):
        read_config(tmp_path / "gone")
    with pytest.raises(InputError, match=r"contains no config\.json"):
        read_config(tmp_path)
    for content in ("{", "[]", "[" * 100_000):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(InputError, match=r"config\.json: not (JSON|a JSON object)"):
            read_config(tmp_path)
