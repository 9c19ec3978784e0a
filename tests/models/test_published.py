import pytest

from t5x_lite.core import tied_parameters
from t5x_lite.core.trees import count_parameters
from t5x_lite.models import published
from t5x_lite.nn.slots import shapes

# d_model, heads, layers of encoder and of decoder, d_ff: the papers' sizes (shared with t5x's gin
# files), and the parameters of the released checkpoints.
SIZES = {
    "t5_small": (512, 8, 6, 6, 2048, 60_506_624),
    "t5_base": (768, 12, 12, 12, 3072, 222_903_552),
    "t5_large": (1024, 16, 24, 24, 4096, 737_668_096),
    "t5_3b": (1024, 32, 24, 24, 16384, 2_851_598_336),
    "t5_11b": (1024, 128, 24, 24, 65536, 11_307_321_344),
    "t5_base_shared": (768, 12, 12, 12, 3072, 137_949_312),
    "t5_base_6_layers": (768, 12, 6, 6, 3072, 123_790_080),
    "t5_base_2x": (1024, 16, 16, 16, 4096, 502_746_112),
    "t5_base_4x": (1024, 16, 32, 32, 4096, 972_590_080),
    "t5_1_1_small": (512, 6, 8, 8, 1024, 76_961_152),
    "t5_1_1_base": (768, 12, 12, 12, 2048, 247_577_856),
    "t5_1_1_large": (1024, 16, 24, 24, 2816, 783_150_080),
    "t5_1_1_xl": (2048, 32, 24, 24, 5120, 2_849_757_184),
    "t5_1_1_xxl": (4096, 64, 24, 24, 10240, 11_135_332_352),
    "mt5_small": (512, 6, 8, 8, 1024, 300_176_768),
    "mt5_base": (768, 12, 12, 12, 2048, 582_401_280),
    "mt5_large": (1024, 16, 24, 24, 2816, 1_229_581_312),
    "mt5_xl": (2048, 32, 24, 24, 5120, 3_742_619_648),
    "mt5_xxl": (4096, 64, 24, 24, 10240, 12_921_057_280),
    "umt5_small": (512, 6, 8, 8, 1024, 306_601_984),
    "umt5_base": (768, 12, 12, 12, 2048, 592_043_520),
    "umt5_xl": (2048, 32, 24, 24, 5120, 3_768_356_864),
    "umt5_xxl": (4096, 64, 24, 24, 10240, 12_972_531_712),
    "byt5_small": (1472, 6, 12, 4, 3584, 299_637_760),
    "byt5_base": (1536, 12, 18, 6, 3968, 581_653_248),
    "byt5_large": (1536, 16, 36, 12, 3840, 1_228_183_552),
    "byt5_xl": (2560, 32, 36, 12, 6720, 3_737_801_728),
    "byt5_xxl": (4672, 64, 36, 12, 12352, 12_906_899_328),
}
VOCABULARIES = {"t5": 32128, "mt5": 250112, "umt5": 256384, "byt5": 384}


@pytest.mark.parametrize("name", SIZES)
def test_sizes(name):
    config = getattr(published, name)()
    assert (
        config.d_model,
        config.num_heads,
        config.num_encoder_layers,
        config.num_decoder_layers,
        config.d_ff,
    ) == SIZES[name][:5]
    assert config.d_kv == (128 if name in {"t5_3b", "t5_11b"} else 64)
    assert config.vocab_size == VOCABULARIES[name.split("_")[0]]
    assert (config.relative_buckets, config.relative_max_distance) == (32, 128)
    assert (config.norm_epsilon, config.dropout_rate) == (1e-6, 0.1)


@pytest.mark.parametrize("name", SIZES)
def test_family(name):
    config = getattr(published, name)()
    first = name.startswith("t5_") and "1_1" not in name
    choices = (config.feed_forward, config.tie_embeddings)
    assert choices == (("relu", True) if first else ("gated-gelu", False))
    assert config.relative_bias_per_layer == name.startswith("umt5")
    assert config.share_layers == name.endswith("shared")


@pytest.mark.parametrize("name", SIZES)
def test_parameters(name):
    config = getattr(published, name)()
    _, seen, axes = shapes(lambda rngs: config.build(rngs=rngs))
    stored, _ = tied_parameters.stored(config.views(), seen, axes)
    assert count_parameters(stored) == SIZES[name][5]


@pytest.mark.parametrize("size", ["small", "base", "large", "xl", "xxl"])
def test_other_weights_of_the_same_shapes(size):
    config = getattr(published, f"t5_1_1_{size}")()
    assert getattr(published, f"flan_t5_{size}")() == config
    assert getattr(published, f"t5_lm_adapted_{size}")() == config


def test_fields_replace_those_of_the_preset():
    config = published.t5_3b(d_kv=32, num_decoder_layers=2, tie_embeddings=False, vocab_size=99)
    assert (config.d_kv, config.num_decoder_layers, config.num_encoder_layers) == (32, 2, 24)
    assert (config.tie_embeddings, config.vocab_size) == (False, 99)
    assert published.byt5_small(num_decoder_layers=3, vocab_size=512).num_decoder_layers == 3
    assert not published.t5_base_shared(share_layers=False).share_layers
