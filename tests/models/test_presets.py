import pytest

from t5x_lite.models import presets
from t5x_lite.nn.bind import shapes
from t5x_lite.trees import count_parameters

# d_model, heads, layers of encoder and decoder, d_ff, d_kv: the paper's sizes (shared with t5x's
# gin files), and the parameters of the released checkpoints with a vocabulary of 32128.
SIZES = {
    "t5_small": (512, 8, 6, 2048, 64, 60_506_624),
    "t5_base": (768, 12, 12, 3072, 64, 222_903_552),
    "t5_large": (1024, 16, 24, 4096, 64, 737_668_096),
    "t5_3b": (1024, 32, 24, 16384, 128, 2_851_598_336),
    "t5_11b": (1024, 128, 24, 65536, 128, 11_307_321_344),
    "t5_1_1_small": (512, 6, 8, 1024, 64, 76_961_152),
    "t5_1_1_base": (768, 12, 12, 2048, 64, 247_577_856),
    "t5_1_1_large": (1024, 16, 24, 2816, 64, 783_150_080),
    "t5_1_1_xl": (2048, 32, 24, 5120, 64, 2_849_757_184),
    "t5_1_1_xxl": (4096, 64, 24, 10240, 64, 11_135_332_352),
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes(name):
    config = getattr(presets, name)()
    assert (
        config.d_model,
        config.num_heads,
        config.num_encoder_layers,
        config.d_ff,
        config.d_kv,
    ) == SIZES[name][:5]
    assert config.num_decoder_layers == config.num_encoder_layers
    assert config.vocab_size == 32128
    assert (config.relative_buckets, config.relative_max_distance) == (32, 128)
    assert (config.norm_epsilon, config.dropout_rate) == (1e-6, 0.1)


@pytest.mark.parametrize("name", SIZES)
def test_family(name):
    config = getattr(presets, name)()
    choices = (config.feed_forward, config.tie_embeddings)
    assert choices == (("gated-gelu", False) if "1_1" in name else ("relu", True))


@pytest.mark.parametrize("name", SIZES)
def test_parameters(name):
    config = getattr(presets, name)()
    _, abstract, _ = shapes(lambda rngs: config.build(rngs=rngs))
    assert count_parameters(abstract) == SIZES[name][5]


def test_fields_replace_those_of_the_preset():
    config = presets.t5_3b(d_kv=32, num_decoder_layers=2, tie_embeddings=False, vocab_size=99)
    assert (config.d_kv, config.num_decoder_layers, config.num_encoder_layers) == (32, 2, 24)
    assert (config.tie_embeddings, config.vocab_size) == (False, 99)
