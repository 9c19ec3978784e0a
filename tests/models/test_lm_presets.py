import pytest

from t5x_lite.core.trees import count_parameters
from t5x_lite.models import published
from t5x_lite.nn.slots import shapes

# d_model, heads, layers, d_ff, and the parameters: t5x's own counts (134,307,072 for base, in
# base.gin, and 4,762,357,760 for xxl, in xxl.gin) are of models with a bias table for each layer,
# and that of base is of one with an output layer of its own.
SIZES = {
    "lm_v1": (768, 12, 12, 3072, 109_628_544),
    "lm_base": (768, 12, 12, 2048, 109_628_544),
    "lm_large": (1024, 16, 24, 2816, 341_231_104),
    "lm_xl": (2048, 32, 24, 5120, 1_223_527_424),
    "lm_xxl": (4096, 64, 24, 10240, 4_762_310_656),
}


def parameters(config):
    _, abstract, _ = shapes(lambda rngs: config.build(rngs=rngs))
    return count_parameters(abstract)


@pytest.mark.parametrize("name", SIZES)
def test_sizes(name):
    config = getattr(published, name)()
    sizes = (config.d_model, config.num_heads, config.num_layers, config.d_ff)
    assert (*sizes, parameters(config)) == SIZES[name]
    assert (config.vocab_size, config.d_kv, config.tie_embeddings) == (32128, 64, True)
    assert config.feed_forward == ("relu" if name == "lm_v1" else "gated-gelu")
    assert not config.prefix


def test_the_counts_of_t5x():
    own = {"relative_bias_per_layer": True}
    assert parameters(published.lm_base(tie_embeddings=False, **own)) == 134_307_072
    assert parameters(published.lm_xxl(**own)) == 4_762_357_760


def test_fields_replace_those_of_the_preset():
    config = published.lm_v1(prefix=True, num_layers=2, feed_forward="gated-gelu")
    assert (config.prefix, config.num_layers, config.feed_forward) == (True, 2, "gated-gelu")
