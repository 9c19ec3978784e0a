"""Gates: what a row gets of a module depends on its own tokens, and on none that are to come."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_lite.adapters.bottleneck import seq_bn
from t5x_lite.adapters.composition import gates_of, make_gate
from t5x_lite.adapters.delta_merging import Union
from t5x_lite.adapters.grammar import parse_module, parse_trees, write_module
from t5x_lite.adapters.lora import Lora
from t5x_lite.adapters.prefix import Prefix, unipelt
from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import flatten
from t5x_lite.models.lm import LMConfig
from t5x_lite.nn.masks import Visibility
from t5x_lite.objectives.learner import Learner
from t5x_lite.objectives.likelihood import LanguageModel
from tests.adapters.hosts import HOSTS, SIZES, learner, outputs, random

GATED = Lora(name="g", rank=2, alpha=4.0, gate="real_tokens")


def small(gate, name="unipelt"):
    """A UniPELT of few numbers."""
    members = (
        Prefix(name=name, length=3, hidden=5, gate=gate, shared_gate=False),
        seq_bn(name=name, reduction=4.0, gate=gate),
        Lora(name=name, rank=2, alpha=4.0, gate=gate),
    )
    return Union(name=name, members=members)


def test_the_mean_of_the_tokens_that_are_seen():
    dense = make_gate(2, None, rngs=nnx.Rngs(0))
    dense.kernel[...] = jnp.array([[1.0], [0.0]])
    x = jnp.log(jnp.array([[[1.0, 1.0], [3.0, 1.0], [9.0, 1.0]]] * 2))
    own = np.array([0.5, 0.75, 0.9])
    found = gates_of(dense, x, Visibility(keys=jnp.array([[1, 1, 0], [1, 1, 1]])), "real_tokens")
    np.testing.assert_allclose(found[:, 0, 0], [own[:2].mean(), own.mean()], rtol=1e-6)
    segments = jnp.array([[1, 1, 2], [1, 2, 2]])
    seen = Visibility(keys=segments, queries=segments)
    found = gates_of(dense, x, seen, "real_tokens")[..., 0]
    expected = [[0.625, 0.625, 0.9], [0.5, 0.825, 0.825]]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_allclose(gates_of(dense, x, None, "real_tokens")[0, :, 0], own, rtol=1e-6)
    found = gates_of(dense, x, None, "all_tokens")
    np.testing.assert_allclose(found, np.full((2, 1, 1), own.mean()), rtol=1e-6)


@pytest.mark.parametrize("host", ["bert", pytest.param("deberta", marks=pytest.mark.slow)])
def test_padding_does_not_count(host):
    """And without padding it is the mean of all tokens, as in the library."""
    made, batch = learner(host, small("real_tokens"))
    params = random(made.shapes)
    rows = {name: batch[name][:2] for name in ("encoder_input_tokens", "encoder_segment_ids")}
    short = {name: x[:1, :3] for name, x in rows.items()}
    longer = {name: jnp.pad(x, ((0, 0), (0, 3))) for name, x in short.items()}
    run = jax.jit(lambda params, batch: outputs(made, params, batch))
    alone = run(params, short)
    np.testing.assert_allclose(run(params, longer)[:, :3], alone, rtol=1e-5, atol=1e-6)
    if host == "bert":  # whose distances have no gate of all tokens
        all_tokens, _ = learner(host, small("all_tokens"))
        found = outputs(all_tokens, params, short)
        np.testing.assert_allclose(found, alone, rtol=1e-5, atol=1e-6)
        other = outputs(all_tokens, params, longer)[:, :3]
        assert np.abs(np.asarray(other - found)).max() > 1e-4


@pytest.mark.slow
def test_a_decoder_knows_no_token_that_is_to_come():
    made, batch = learner("t5", small("real_tokens"))
    params = random(made.shapes)
    run = jax.jit(lambda batch: outputs(made, params, batch))
    changed = {**batch, "decoder_input_tokens": batch["decoder_input_tokens"].at[:, 2].set(13)}
    before, after = run(batch), run(changed)
    np.testing.assert_array_equal(before[:, :2], after[:, :2])
    assert np.abs(np.asarray(before - after)[:, 2]).max() > 1e-4


def test_gates_in_a_composition():
    """A Stack adds the branches, whichever is first; MultiTask gives a row its own."""
    other = dataclasses.replace(GATED, name="h")
    plain = Lora(name="p", rank=2, alpha=4.0)
    stacks = [
        learner("bert", GATED, plain, use=parse_trees(use))[0]
        for use in ("Stack(g, p)", "Stack(p, g)")
    ]
    _, batch = learner("bert")
    params = random(stacks[0].shapes)
    found = [outputs(made, params, batch) for made in stacks]
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5, atol=1e-6)
    alone = [learner("bert", each)[0] for each in (GATED, other)]
    both, _ = learner("bert", GATED, other, use=parse_trees("MultiTask(g, h)"))
    params = random(both.shapes)
    ids = jnp.arange(8) % 2
    model = both.bind(params, adapter_ids=ids).model
    mixed = model(batch["encoder_input_tokens"], segment_ids=batch["encoder_segment_ids"])
    for number, made in enumerate(alone):
        name = made.adapters[0].name
        own = {**params, "adapters": {name: params["adapters"][name]}}
        np.testing.assert_allclose(
            mixed[number::2], outputs(made, own, batch)[number::2], rtol=1e-5, atol=1e-6
        )


def test_what_cannot_be():
    for options, message in (
        ({"gate": "real_tokens", "dora": True}, "a gate does not support dora"),
        (
            {"gate": "real_tokens", "sites": ("embedding",)},
            "a gate does not support site 'embedding'",
        ),
    ):
        with pytest.raises(InputError, match=message):
            Lora(**options)
    for adapter in (Lora(gate="all_tokens"), small("all_tokens")):
        with pytest.raises(InputError, match="would read future tokens in a decoder"):
            learner("t5", adapter)
    made, batch = learner("deberta", Lora(gate="all_tokens"))
    with pytest.raises(InputError, match="is not supported at layers that also project DeBERTa's"):
        outputs(made, random(made.shapes), batch)
    sizes = {**SIZES, "d_kv": 4, "num_layers": 2}
    with pytest.raises(InputError, match="no encoder has prefixes"):
        Learner.of(LMConfig(**sizes), LanguageModel(), adapters=(Prefix(gate="real_tokens"),))
    made, _ = learner("bert", GATED)
    with pytest.raises(InputError, match="a LoRA adapter with a gate cannot be merged"):
        made.merged(random(made.shapes))
    assert unipelt().unpackable == "the gate of a prefix is computed once for each row"


def test_a_line_of_a_config():
    adapter = parse_module("u = unipelt(length=4)")
    assert parse_module(write_module(adapter)) == adapter
    assert adapter == unipelt(name="u", length=4)
    made, _ = learner("bert", adapter)
    shapes = flatten(made.shapes["adapters"]["u"])
    assert shapes["prefix/encoder/attention/prefix/gate/kernel"].shape == (2, 8, 1)
    assert shapes["lora/encoder/attention/query/gate/bias"].shape == (2, 1)
    assert HOSTS["bert"][0].num_layers == 2
