import math

import jax
import pytest

from t5x_lite.models import published as presets
from t5x_lite.nn.slots import shapes


def millions(config):
    _, params, _ = shapes(lambda rngs: config.build(rngs=rngs))
    return round(sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params)) / 1e6)


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        (presets.deberta_v2_xlarge, 885),
        (presets.deberta_v2_xxlarge, 1565),
        (presets.deberta_v3_xsmall, 71),
        (presets.deberta_v3_small, 141),
        (presets.deberta_v3_base, 184),
        (presets.deberta_v3_large, 434),
        (presets.mdeberta_v3_base, 278),
    ],
)
def test_parameters(preset, expected):
    assert millions(preset()) == expected


def test_fields_replace_those_of_a_preset():
    config = presets.deberta_v2_xlarge(conv_kernel_size=0, num_layers=2)
    assert (config.num_layers, config.conv_kernel_size, config.conv_activation) == (2, 0, "gelu")


def test_a_generator_is_half_as_deep():
    generator = presets.deberta_v3_generator(presets.deberta_v3_xsmall())
    assert (generator.num_layers, generator.d_model, generator.num_heads) == (6, 384, 6)
    assert generator.enhanced_mask_decoder
    assert not presets.deberta_v3_xsmall().enhanced_mask_decoder
    one = presets.deberta_v3_xsmall(num_layers=1)
    assert presets.deberta_v3_generator(one, vocab_size=9).num_layers == 1
