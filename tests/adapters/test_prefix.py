"""Prefixes: keys and values that every query sees."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.adapters.grammar import parse_module, parse_trees, write_module
from t5x_lite.adapters.lora import Lora
from t5x_lite.adapters.prefix import Prefix, ejected, mam, unipelt
from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import count_parameters, flatten, unflatten
from t5x_lite.decoding.generate import decode
from t5x_lite.decoding.sampling import Decoding
from t5x_lite.models.encoder import BertConfig
from t5x_lite.models.t5 import T5Config
from t5x_lite.nn.attention import dot_product_attention, with_room
from t5x_lite.nn.attention_pattern import Pattern
from t5x_lite.nn.masks import Visibility, segments
from t5x_lite.objectives.learner import Learner
from t5x_lite.objectives.likelihood import Seq2Seq
from t5x_lite.objectives.task_heads import Classify
from tests.adapters.hosts import HOSTS, decoded, learner, outputs, random

PREFIX = Prefix(length=3, hidden=5)
IDS = jnp.array([[1, 1, 1, 2, 2, 0], [1, 2, 2, 2, 3, 3]])


def operands(seed=0):
    """Queries, keys and values [2, 6, 2, 4], and a prefix of 3."""
    rng = np.random.default_rng(seed)
    shapes = (*[(2, 6, 2, 4)] * 3, *[(3, 2, 4)] * 2)
    return [jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in shapes]


def of_numpy(query, key, value, before, values_before, mask, bias):
    """Written out: softmax over the prefix and the keys that a query sees."""
    out = np.zeros(query.shape)
    for b, t, h in np.ndindex(*query.shape[:3]):
        seen = [s for s in range(key.shape[1]) if mask[b, 0, t, s]]
        logits = [query[b, t, h] @ k for k in before[:, h]]
        logits += [query[b, t, h] @ key[b, s, h] + bias[0, h, t, s] for s in seen]
        weights = np.exp(np.asarray(logits) - max(logits))
        values = np.concatenate([values_before[:, h], value[b, seen, h]])
        out[b, t, h] = weights @ values / weights.sum()
    return out


def test_it_is_softmax_over_the_prefix_and_what_a_query_sees():
    query, key, value, *prefix = operands()
    mask = np.asarray(segments(IDS, IDS))
    bias = np.random.default_rng(1).standard_normal((1, 2, 6, 6)).astype(np.float32)
    found = dot_product_attention(
        query,
        key,
        value,
        pattern=Pattern(jnp.asarray(mask), jnp.asarray(bias)),
        prefix=(prefix[0], prefix[1]),
    )
    expected = of_numpy(*map(np.asarray, (query, key, value, *prefix)), mask, bias)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("block", [4, 8])
def test_in_blocks_it_is_the_same_in_output_and_gradients(share, block):
    def loss(visible, rate):
        def of(arrays):
            query, key, value, *prefix = arrays
            out = dot_product_attention(
                query,
                key,
                value,
                pattern=Pattern(visible),
                dropout_rate=rate,
                dropout_key=jax.random.key(1),
                share_dropout=share,
                prefix=(prefix[0], prefix[1]),
            )
            return jnp.sum(out * jnp.cos(jnp.arange(out.size).reshape(out.shape))), out

        return jax.jit(jax.grad(of, has_aux=True))(operands())

    rate = 0.5 if share else 0.0  # plain attention has other draws of each query and key
    dense, expected = loss(segments(IDS, IDS), rate)
    blocked, found = loss(Visibility(keys=IDS, queries=IDS, block_size=block), rate)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    for got, wanted in zip(blocked, dense, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
        assert np.abs(wanted).max() > 0


def test_room_is_made_before_the_others():
    np.testing.assert_array_equal(with_room(jnp.zeros((1, 2)), 2, 1), [[1, 1, 0, 0]])
    assert with_room(None, 2, 1) is None


def test_the_parameters_of_a_t5():
    made, _ = learner("t5", PREFIX)
    assert {path.split("/", 2)[2] for path in flatten(made.shapes) if "adapters" in path} == {
        f"{network}{stack}/prefix/{leaf}"
        for stack in ("encoder/attention", "decoder/attention", "decoder/cross_attention")
        for network, leaves in (
            ("", ("kernel", "bias")),
            ("network/", ("embedding", "kernel", "bias")),
        )
        for leaf in leaves
    }


@pytest.mark.parametrize("adapter", [PREFIX, unipelt(length=3, reduction=4.0)])
@pytest.mark.slow
def test_a_t5_decodes_by_steps_and_beams_as_it_computes_whole_targets(adapter):
    """Scanned and laid out for decoding: prefixes of the encoder, the decoder and across."""
    made, batch = learner("t5", adapter)
    params = random(made.shapes)
    inputs = batch["encoder_input_tokens"][:2]

    @jax.jit
    def run(params):
        model = made.bind_model(params)
        prepared = model.prepared()
        beams = [
            decode(each, inputs, decoding=Decoding(max_decode_length=4, num_beams=3, eos_id=1))
            for each in (model, prepared)
        ]
        tokens = beams[0][0][:, 0]
        steps = [decoded(each, inputs, tokens[:, :3]) for each in (model, prepared)]
        forced = jnp.pad(tokens[:, :3], ((0, 0), (1, 0)))
        return beams, steps, model(inputs, forced)

    beams, steps, whole = run(params)
    np.testing.assert_array_equal(beams[0][0], beams[1][0])
    np.testing.assert_allclose(steps[0], whole, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(steps[1], whole, rtol=1e-5, atol=1e-5)
    plain, _ = learner("t5")
    base = {part: params[part] for part in params if part != "adapters"}
    forced = jnp.pad(beams[0][0][:, 0, :3], ((0, 0), (1, 0)))
    without = plain.bind_model(base)(inputs, forced)
    assert np.abs(np.asarray(without) - np.asarray(whole)).max() > 0.01


@pytest.mark.parametrize("host", ["bert", "deberta"])
def test_an_encoder_in_blocks_and_beside_padding(host):
    made, batch = learner(host, PREFIX)
    params = random(made.shapes)
    model, objective, _ = HOSTS[host]
    blocked = Learner.of(
        model.replace(attention="blocked", attention_block=2),
        objective,
        adapters=(PREFIX,),
        optimizer=made.optimizer,
    )
    wider = {n: jnp.pad(x, ((0, 0), (0, 3))) for n, x in batch.items() if n != "labels"}

    @jax.jit
    def run(params):
        return (
            outputs(made, params, batch),
            outputs(blocked, params, batch),
            outputs(made, params, wider)[:, :4],
        )

    plain, in_blocks, padded = run(params)
    there = np.asarray(batch["encoder_segment_ids"])[..., None] > 0
    np.testing.assert_allclose(in_blocks * there, plain * there, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(padded * there, plain * there, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("host", "dtype"), [("t5", "float32"), ("t5", "bfloat16"), ("deberta", "bfloat16")]
)
@pytest.mark.slow
def test_without_its_network_it_gives_the_same(host, dtype):
    made, batch = learner(host, PREFIX, dtype=dtype)
    params = random(made.shapes)
    flat, own = ejected(PREFIX, params, dtype=dtype)
    with pytest.raises(InputError, match="no path that begins with adapters/other/"):
        ejected(dataclasses.replace(PREFIX, name="other"), params)
    assert flat == dataclasses.replace(PREFIX, flat=True)
    assert ejected(flat, own) == (flat, own)
    without, _ = learner(host, flat, dtype=dtype)
    assert set(own) == {path for path in flatten(without.shapes) if path.startswith("adapters/")}
    base = {path: x for path, x in flatten(params).items() if not path.startswith("adapters/")}
    ours = jax.jit(lambda p: outputs(without, p, batch))(unflatten({**base, **own}))
    theirs = jax.jit(lambda p: outputs(made, p, batch))(params)
    if dtype == "bfloat16":
        np.testing.assert_array_equal(ours, theirs)
    else:
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)


def test_keys_of_0_are_not_nothing():
    """They take a part of the softmax."""
    flat = dataclasses.replace(PREFIX, flat=True)
    made, batch = learner("bert", flat)
    params = random(made.shapes)
    zeros = {**params, "adapters": jax.tree.map(jnp.zeros_like, params["adapters"])}
    bare, _ = learner("bert")
    without = outputs(bare, {p: params[p] for p in params if p != "adapters"}, batch)
    assert np.abs(np.asarray(outputs(made, zeros, batch) - without)).max() > 1e-3


def test_only_the_prefix_trains_and_the_attentions_may_be_chosen():
    made, _ = learner("t5", dataclasses.replace(PREFIX, encoder=False, cross=False))
    (update,) = made.updates()
    trained = set(flatten(update.part(made.shapes)))
    assert all(path.startswith("adapters/prefix/") for path in trained)
    assert {path.split("/")[2] for path in trained} == {"network", "decoder"}
    assert not any("cross" in path for path in trained)
    encoder, _ = learner("bert", dataclasses.replace(PREFIX, encoder=False))
    assert any("adapters" in path for path in flatten(encoder.shapes))  # its only stack


def test_sizes_are_those_of_the_papers():
    base = BertConfig(
        vocab_size=8, d_model=768, d_ff=3072, num_heads=12, num_layers=12, max_positions=8
    )

    def size(adapter):
        made = Learner.of(base, Classify(num_classes=2), adapters=(adapter,))
        return count_parameters(made.shapes["adapters"])

    assert size(Prefix()) == 9_872_384
    assert size(Prefix(flat=True)) == 552_960
    assert size(mam()) == 22_493_984
    assert size(unipelt()) == 11_083_376


def test_lines_of_a_config():
    assert parse_module("p = prefix(length=10)") == Prefix(name="p", length=10)
    assert parse_module(write_module(mam(name="m"))) == mam(name="m") == parse_module("m = mam()")
    both = parse_module("m = prefix(length=2, hidden=3) + lora(r=2)")
    made, batch = learner("bert", both)
    outputs(made, random(made.shapes), batch)


def test_two_in_a_stack_are_all_of_their_keys():
    one, other = (Prefix(name=name, length=2, flat=True) for name in "ab")
    model, objective, batch = HOSTS["bert"]
    made = Learner.of(model, objective, adapters=(one, other), use=parse_trees("Stack(a, b)"))
    params = random(made.shapes)
    longer, _ = learner("bert", Prefix(name="a", length=4, flat=True))
    own = params["adapters"]
    joined = jax.tree.map(lambda x, y: jnp.concatenate([x, y], axis=1), own["a"], own["b"])
    np.testing.assert_allclose(
        outputs(longer, {**params, "adapters": {"a": joined}}, batch),
        outputs(made, params, batch),
        rtol=1e-6,
        atol=1e-6,
    )


def test_what_cannot_be():
    with pytest.raises(InputError, match="length must be at least 1: got 0"):
        Prefix(length=0)
    with pytest.raises(
        InputError, match=r"the model has no adapter site 'attention/prefx'; did you mean"
    ):
        learner("bert", Prefix(sites=("attention/prefx",)))
    with pytest.raises(
        InputError, match="'b' and another adapter both use the site encoder/attention/prefix"
    ):
        learner("bert", PREFIX, Prefix(name="b"))
    made, _ = learner("bert", PREFIX, Lora())
    with pytest.raises(InputError, match="encoder/attention/prefix cannot be merged into the mod"):
        made.merged(random(made.shapes))
    model, objective, _ = HOSTS["bert"]
    for use in ("Average(prefix, lora)", "Fuse(prefix, lora)"):
        with pytest.raises(
            InputError, match=r"prefix 'prefix' uses the site encoder/attention/prefix"
        ):
            Learner.of(model, objective, adapters=(PREFIX, Lora()), use=parse_trees(use))


def test_it_learns_beside_a_model_of_packed_rows():
    """Two texts of a row, each alone: segments do not see each other, and both see the prefix."""
    model = T5Config(
        vocab_size=16,
        d_model=8,
        d_ff=16,
        num_heads=2,
        d_kv=4,
        num_encoder_layers=1,
        num_decoder_layers=1,
        dropout_rate=0.0,
    )
    made = Learner.of(model, Seq2Seq(), adapters=(PREFIX,))
    params = random(made.shapes)
    packed = {
        "encoder_input_tokens": jnp.array([[5, 6, 1, 7, 1]]),
        "encoder_segment_ids": jnp.array([[1, 1, 1, 2, 2]]),
        "encoder_positions": jnp.array([[0, 1, 2, 0, 1]]),
        "decoder_input_tokens": jnp.array([[0, 9, 0]]),
        "decoder_target_tokens": jnp.array([[9, 1, 1]]),
        "decoder_loss_weights": jnp.array([[1, 1, 1]]),
        "decoder_segment_ids": jnp.array([[1, 1, 2]]),
        "decoder_positions": jnp.array([[0, 1, 0]]),
    }
    alone = {
        "encoder_input_tokens": jnp.array([[5, 6, 1], [7, 1, 0]]),
        "decoder_input_tokens": jnp.array([[0, 9], [0, 0]]),
        "decoder_target_tokens": jnp.array([[9, 1], [1, 0]]),
        "decoder_loss_weights": jnp.array([[1, 1], [1, 0]]),
    }

    @jax.jit
    def losses(params):
        return [made.loss(params, batch, None).value() for batch in (packed, alone)]

    together, apart = losses(params)
    np.testing.assert_allclose(together, apart, rtol=1e-5)


def test_its_place_is_to_the_left_of_a_berts_tokens():
    """Whose table is read from row P on, as one with its rows moved is without a place."""
    left, batch = learner("bert", dataclasses.replace(PREFIX, place="left"))
    nowhere, _ = learner("bert", PREFIX)
    params = random(left.shapes)
    table = params["model"]["embedding"]["position"]
    moved = jax.tree.map(lambda x: x, params)
    moved["model"]["embedding"]["position"] = jnp.roll(table, -3, axis=0)
    found = jax.jit(lambda p: outputs(left, p, batch))(params)
    run = jax.jit(lambda p: outputs(nowhere, p, batch))
    np.testing.assert_allclose(found, run(moved), rtol=1e-6, atol=1e-6)
    assert np.abs(found - run(params)).max() > 1e-3
    long = {name: jnp.tile(x, (1, 2)) for name, x in batch.items()}
    with pytest.raises(InputError, match="rows have 8 tokens, but the model has only"):
        outputs(left, params, long)


def test_its_place_is_to_the_left_of_a_t5s_tokens():
    """By steps behind prompts of two lengths as in whole targets; and not in blocks."""
    adapter = dataclasses.replace(PREFIX, place="left", encoder=False, cross=False)
    made, batch = learner("t5", adapter)
    params = random(made.shapes)
    inputs, targets = batch["encoder_input_tokens"][:2], jnp.array([[9, 3, 4, 5], [11, 6, 7, 8]])

    @jax.jit
    def run(params):
        model = made.bind_model(params)
        prompt = jnp.array([[9, 3], [11, 0]])
        steps = decoded(model, inputs, jnp.array([[4, 5], [6, 7]]), prompt=prompt)
        return steps, model(inputs, jnp.pad(targets, ((0, 0), (1, 0))))

    steps, whole = run(params)
    np.testing.assert_allclose(steps[0], whole[0, 2:5], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(steps[1], whole[1, 1:4], rtol=1e-5, atol=1e-5)
    nowhere, _ = learner("t5", dataclasses.replace(adapter, place="none"))
    forced = jnp.pad(targets, ((0, 0), (1, 0)))
    assert np.abs(nowhere.bind_model(params)(inputs, forced) - whole).max() > 1e-3
    model = dataclasses.replace(HOSTS["t5"][0], attention="blocked")
    blocked = Learner.of(model, Seq2Seq(), adapters=(adapter,))
    with pytest.raises(InputError, match="set --model"):
        blocked.bind_model(params)(inputs, targets)


def test_what_has_no_place():
    left = dataclasses.replace(PREFIX, place="left")
    with pytest.raises(InputError, match="DeBERTa does not support a prefix with positions"):
        learner("deberta", left)
    with pytest.raises(InputError, match="does not support a gate; set"):
        Prefix(place="left", gate="real_tokens")
    with pytest.raises(InputError, match="place"):
        parse_module("x = prefix(place='right')")
    other = Lora(name="other")
    with pytest.raises(InputError, match="cannot be composed with other adapters"):
        learner("bert", left, other, use=parse_trees("Stack(other, prefix)"))
    assert "first text" in left.unpackable
