import pytest

from t5x_lite.core.trees import count_parameters
from t5x_lite.models import published
from t5x_lite.nn.slots import shapes

# d_model, heads, layers, d_ff, vocabulary, and the parameters of the released encoders without
# their poolers.
SIZES = {
    "bert_base": (768, 12, 12, 3072, 30522, 108_891_648),
    "bert_large": (1024, 16, 24, 4096, 30522, 334_092_288),
    "roberta_base": (768, 12, 12, 3072, 50265, 124_055_040),
    "roberta_large": (1024, 16, 24, 4096, 50265, 354_310_144),
    "xlm_r_base": (768, 12, 12, 3072, 250002, 277_453_056),
    "xlm_r_large": (1024, 16, 24, 4096, 250002, 558_840_832),
    "electra_small": (256, 4, 12, 1024, 30522, 13_483_008),
    "electra_base": (768, 12, 12, 3072, 30522, 108_891_648),
    "electra_large": (1024, 16, 24, 4096, 30522, 334_092_288),
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes(name):
    config = getattr(published, name)()
    sizes = (config.d_model, config.num_heads, config.num_layers, config.d_ff, config.vocab_size)
    assert sizes == SIZES[name][:5]
    roberta = name.startswith(("roberta", "xlm_r"))
    assert config.max_positions - config.position_offset == 512
    assert (config.pad_id, config.position_offset) == ((1, 2) if roberta else (0, 0))
    assert (config.token_types, config.norm_epsilon) == ((1, 1e-5) if roberta else (2, 1e-12))


@pytest.mark.parametrize("name", SIZES)
def test_parameters_are_those_of_the_release(name):
    config = getattr(published, name)()
    _, abstract, _ = shapes(lambda rngs: config.build(rngs=rngs))
    assert count_parameters(abstract) == SIZES[name][5]


def test_fields_replace_the_presets():
    assert published.bert_base(vocab_size=28996).vocab_size == 28996
    assert published.xlm_r_large(dropout_rate=0.0).dropout_rate == 0.0


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("electra_small", (64, 1, 12, 256, 128)),
        ("electra_base", (256, 4, 12, 1024, 768)),
        ("electra_large", (256, 4, 24, 1024, 1024)),
    ],
)
def test_generators(name, expected):
    config = published.electra_generator(getattr(published, name)())
    assert (
        config.d_model,
        config.num_heads,
        config.num_layers,
        config.d_ff,
        config.table_size,
    ) == expected
    assert config.vocab_size == 30522
