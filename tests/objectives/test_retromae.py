"""RetroMAE: what its decoder may see, and both decoders against NumPy."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from t5x_lite.config.file import from_json, to_json
from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import flatten
from t5x_lite.nn.slots import bind, shapes
from t5x_lite.objectives import masked_lm
from t5x_lite.objectives.learner import Bound
from t5x_lite.objectives.retromae import Documents, RetroMAE
from tests.objectives.encoder_rows import LENGTH, MASK, MODEL, VOCAB, learner, rows

BATCH = rows()


def objective(**changes):
    return RetroMAE(**{"mask_id": MASK, "logits_chunk": 5, **changes})


def test_documents_of_a_packed_row():
    batch = {
        "encoder_input_tokens": jnp.array([[1, 7, 2, 1, 8, 9, 2, 0]]),
        "encoder_segment_ids": jnp.array([[1, 1, 1, 2, 2, 2, 2, 0]]),
    }
    expected = {
        "positions": [0, 1, 2, 0, 1, 2, 3, 0],
        "first": [0, 0, 0, 3, 3, 3, 3, 7],
        "inner": [0, 1, 0, 0, 1, 1, 0, 0],
    }
    positions = {"encoder_positions": jnp.array([expected["positions"]])}
    for given in (batch, batch | positions):
        found = Documents.of(given, pad_id=0)
        for name, values in expected.items():
            assert getattr(found, name)[0].astype(int).tolist() == values, name
        assert found.together.dense(8)[0, 0, 4].astype(int).tolist() == [0, 0, 0, 1, 1, 1, 1, 0]


def test_one_document_a_row_needs_no_segments():
    found = Documents.of({"encoder_input_tokens": jnp.array([[1, 7, 2, 0]])}, pad_id=0)
    assert found.inner.tolist() == [[False, True, False, False]]
    assert found.together.dense(4)[0, 0, 1].tolist() == [True, True, True, False]


def layer_of(params, number=0):
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64)[number], params)


def dense(params, x):
    return x @ params["kernel"] + params["bias"]


def norm(params, x):
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = np.mean(centred**2, axis=-1, keepdims=True)
    return centred / np.sqrt(variance + MODEL.norm_epsilon) * params["scale"] + params["bias"]


def gelu(x):
    return x * 0.5 * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0)))


def layer(params, x, keys, mask):
    """One post-norm layer; the residual follows the query."""
    heads, size = MODEL.num_heads, MODEL.d_model // MODEL.num_heads

    def split(y):
        return y.reshape(*y.shape[:2], heads, size).transpose(0, 2, 1, 3)

    attention = params["attention"]
    query, key, value = (
        split(dense(attention[n], y)) for n, y in (("query", x), ("key", keys), ("value", keys))
    )
    logits = query @ key.transpose(0, 1, 3, 2) / math.sqrt(size)
    logits = np.where(mask[:, None], logits, -1e10)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    mixed = (weights @ value).transpose(0, 2, 1, 3).reshape(x.shape)
    x = norm(params["attention_norm"], x + dense(attention["out"], mixed))
    return norm(
        params["mlp_norm"], x + dense(params["mlp"]["wo"], gelu(dense(params["mlp"]["wi"], x)))
    )


def embeddings(params, tokens, positions):
    table = params["embedding"]
    return norm(
        table["norm"],
        (0.0 if tokens is None else table["token"][tokens])
        + table["position"][positions]
        + table["token_type"][0],
    )


def log_p(params, states):
    head, table = params["heads"]["mlm"], params["model"]["embedding"]["token"]
    x = norm(head["norm"], gelu(dense(head["dense"], states)))
    logits = x @ table.T + head["bias"]
    return logits - np.log(np.sum(np.exp(logits), axis=-1, keepdims=True))


def reference(config, params, batch, *, key):
    """Mean cross-entropy of encoder and decoder; the masks are those of the objective."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    model, tokens = params["model"], np.asarray(batch["encoder_input_tokens"])
    positions = np.asarray(batch["encoder_positions"])
    segments = np.asarray(batch["encoder_segment_ids"])
    encoder_noise, decoder_noise = jax.random.split(key)
    vocabulary = {"vocab_size": VOCAB, "pad_id": 0}
    inputs, slots = config.draw(batch, **vocabulary, key=encoder_noise)
    together = (segments[:, :, None] == segments[:, None]) & (segments[:, None] > 0)
    x = embeddings(model, np.asarray(inputs), positions)
    hidden = layer(layer_of(model["layers"]), x, x, together)
    at = np.asarray(slots.positions), np.asarray(slots.used)
    index = np.arange(len(tokens))[:, None]
    of_encoder = log_p(params, hidden)[index, at[0], tokens[index, at[0]]]
    encoder = -np.sum(of_encoder * at[1]) / at[1].sum()

    summary = hidden[index, np.arange(LENGTH) - positions]
    is_first = (positions == 0)[..., None]
    decoders = params["objective"]["decoder"]
    if config.decoder == "enhanced":
        seen = visible_reference(config, batch, decoder_noise)
        keys = np.where(is_first, summary, embeddings(model, tokens, positions))
        if config.query == "raw":
            query = summary + model["embedding"]["position"][positions]
        else:
            table = model["embedding"]
            total = summary + table["position"][positions] + table["token_type"][0]
            query = norm(table["norm"], total)
        states = layer(layer_of(decoders), query, keys, seen)
        scored = (segments > 0) & ~is_first[..., 0] & (tokens != 2)
    else:
        masked, slots = RetroMAE(
            mask_id=MASK, ratio=config.ratio_of_decoder, mask_fraction=1.0, random_fraction=0.0
        ).draw(batch, **vocabulary, key=decoder_noise)
        x = np.where(is_first, summary, embeddings(model, np.asarray(masked), positions))
        for number in range(config.decoder_layers):
            x = layer(layer_of(decoders, number), x, x, together)
        states, scored = x, np.asarray(masked) != tokens
    taken = np.take_along_axis(log_p(params, states), tokens[..., None], axis=-1)[..., 0]
    return encoder, -np.sum(taken * scored) / scored.sum(), scored.sum()


def visible_reference(config, batch, key):
    """The definition, position by position: real, not itself, special or not masked for i."""
    unit_key, choice_key, pick_key = jax.random.split(key, 3)
    word_ids, segments = (np.asarray(batch[f"encoder_{n}"]) for n in ("word_ids", "segment_ids"))
    what = masked_lm.units(jnp.asarray(word_ids), whole_word=True, key=unit_key)
    size, pool = len(word_ids), min(LENGTH, config.mask_pool)
    number = masked_lm.counts(jnp.asarray(segments > 0), config.ratio_of_decoder)
    masks = masked_lm.choose(
        jnp.broadcast_to(what[:, None], (size, pool, LENGTH)),
        jnp.broadcast_to(number[:, None], (size, pool)),
        key=choice_key,
    )
    picked = np.asarray(jax.random.randint(pick_key, (size, LENGTH), 0, pool))
    seen = np.zeros((size, LENGTH, LENGTH), bool)
    for b, i, j in np.ndindex(*seen.shape):
        same = segments[b, i] == segments[b, j] > 0
        masked = word_ids[b, j] > 0 and bool(masks[b, picked[b, i], j])
        seen[b, i, j] = same and i != j and not masked
    return seen


@pytest.mark.gate("True-changes1", "False-changes2")
@pytest.mark.parametrize(
    ("packed", "changes"),
    [
        (False, {}),
        (True, {"query": "normalised", "mask_pool": 3, "decoder_ratio": 0.4}),
        (False, {"decoder": "basic", "decoder_layers": 2}),
        (True, {"decoder": "basic", "logits_chunk": None}),
    ],
)
@pytest.mark.slow
def test_both_decoders_equal_numpy(packed, changes):
    config, batch = objective(**changes), rows(packed=packed)
    graphdef, params, _ = learner(config)
    loss = jax.jit(lambda params: bind(graphdef, params)(batch))(params)
    encoder, decoder, number = reference(config, params, batch, key=jax.random.key(0))
    got = {name: float(term.total / term.weight) for name, term in loss.terms.items()}
    assert got == pytest.approx({"encoder": encoder, "decoder": decoder}, rel=1e-5)
    assert float(loss.terms["decoder"].weight) == number
    assert all(term.scale == 1.0 for term in loss.terms.values())


@pytest.mark.exhaustive
@pytest.mark.parametrize("changes", [{}, {"decoder": "basic"}])
def test_blocked_attention_gives_the_same_loss(changes):
    config = objective(**changes)
    graphdef, params, _ = learner(config)
    model = MODEL.replace(attention="blocked", attention_block=3)
    blocked, _, _ = shapes(lambda rngs: Bound(model, config, rngs=rngs))

    @jax.jit
    def both(params):
        return [
            jax.value_and_grad(lambda p, g=g: bind(g, p)(BATCH).value())(params)
            for g in (blocked, graphdef)
        ]

    (ours, our_gradient), (expected, expected_gradient) = both(params)
    np.testing.assert_allclose(ours, expected, rtol=1e-6)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
        our_gradient,
        expected_gradient,
    )


@pytest.fixture(scope="module")
def made():
    return learner(objective(bag_of_words=0.1))


def test_a_query_sees_special_tokens_and_about_half_of_the_others_and_never_itself(made):
    graphdef, params, _ = made
    module = bind(graphdef, params)
    documents = Documents.of(BATCH, pad_id=0)
    visible = module.objective._visible(BATCH, documents, key=jax.random.key(3))
    seen = np.asarray(visible.dense(LENGTH)[:, 0])
    assert not np.any(np.diagonal(seen, axis1=1, axis2=2))
    special = np.asarray(BATCH["encoder_word_ids"]) == 0
    real = np.asarray(BATCH["encoder_segment_ids"]) > 0
    others = ~np.eye(LENGTH, dtype=bool) & real[:, :, None]
    assert np.all((seen | ~(special & real)[:, None]) | ~others)
    share = seen[others & (~special & real)[:, None]].mean()
    # Half of all tokens are masked, which the two special ones are not.
    assert 0.3 < share < 0.5


@pytest.mark.slow
def test_every_parameter_gets_a_gradient(made):
    graphdef, params, _ = made
    batch = {**BATCH, "encoder_token_types": BATCH["encoder_positions"] % 2}

    def value(params):
        loss = bind(graphdef, params)(batch)
        return loss.value(), loss.terms["bag_of_words"]

    grads, bag = jax.jit(jax.grad(value, has_aux=True))(params)
    assert (float(bag.weight), float(bag.scale)) == (3, pytest.approx(0.1))
    gradients = flatten(grads)
    assert all(np.all(np.isfinite(gradient)) for gradient in gradients.values())
    zero = [path for path, leaf in gradients.items() if not np.any(np.abs(leaf) > 1e-6)]
    assert {path.rsplit("/", 3)[-3] for path in zero} == {"attention"}
    assert all(path.endswith("attention/key/bias") for path in zero)


@pytest.mark.slow
def test_the_decoder_reads_the_sentence():
    """Trained on rows that repeat one token, it loses when the summaries change places."""
    rng = np.random.default_rng(0)
    batch = rows(batch=8)
    words = np.where(
        np.asarray(batch["encoder_word_ids"]) > 0, rng.permutation(np.arange(10, 18))[:, None], 0
    )
    tokens = np.where(words > 0, words, np.asarray(batch["encoder_input_tokens"]))
    batch = {**batch, "encoder_input_tokens": jnp.asarray(tokens)}
    optimizer = optax.adam(3e-3)
    # Nearly all of the text is hidden from every query: what is left is c.
    config = objective(decoder_ratio=0.95, ratio=0.15, whole_word=False)
    graphdef, params, _ = learner(config)

    @jax.jit
    def step(params, state, key):
        value, grads = jax.value_and_grad(
            lambda params: bind(graphdef, params)(batch, key=key).value()
        )(params)
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(params, updates), state, value

    state = optimizer.init(params)
    for number in range(150):
        params, state, _ = step(params, state, jax.random.key(number))

    @jax.jit
    def decoder_loss(params, order):
        module = bind(graphdef, params)
        ids = {name: batch[f"encoder_{name}"] for name in ("segment_ids", "positions")}
        hidden = module.model(batch["encoder_input_tokens"], **ids)[order]
        losses, _, weights = module.objective._decoded(
            module.model, module.heads.mlm, hidden, batch, noise=jax.random.key(0), key=None
        )
        return jnp.sum(losses * weights) / jnp.sum(weights)

    right = float(decoder_loss(params, jnp.arange(8)))
    wrong = float(decoder_loss(params, jnp.roll(jnp.arange(8), 1)))
    assert wrong > right + 0.5


@pytest.mark.gate("enhanced")
@pytest.mark.parametrize("decoder", ["enhanced", "basic"])
@pytest.mark.slow
def test_padding_may_be_longer_than_the_table_of_positions(decoder):
    graphdef, params, _ = learner(objective(decoder=decoder))
    longer = {name: jnp.pad(leaf, ((0, 0), (0, 2 * LENGTH))) for name, leaf in BATCH.items()}
    assert MODEL.max_positions < 2 * LENGTH
    del longer["encoder_positions"]

    @jax.jit
    @jax.value_and_grad
    def loss(params):
        return bind(graphdef, params)(longer, key=jax.random.key(0)).value()

    value, grads = loss(params)
    assert np.isfinite(value)
    for path, leaf in flatten(grads).items():
        assert np.isfinite(leaf).all(), path


def test_configs_are_saved():
    config = objective(decoder="basic", decoder_layers=2, decoder_ratio=0.6)
    assert from_json(to_json(config), source="here") == config
    assert (objective().ratio_of_decoder, objective(decoder="basic").ratio_of_decoder) == (0.5, 0.7)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decoder_layers": 2}, "exactly 1 for the enhanced decoder, but is 2"),
        ({"decoder_ratio": 1.0}, r"decoder_ratio must be in \(0, 1\): got 1.0"),
        ({"mask_pool": 0}, "mask_pool must be at least 1"),
        ({"bag_of_words": -0.1}, "bag_of_words must be at least 0"),
    ],
)
def test_refuses_nonsense(changes, message):
    with pytest.raises(InputError, match=message):
        objective(**changes)


def test_refuses_models_that_it_cannot_train():
    for model, message in (
        (MODEL.replace(embedding_size=8), r"model\.embedding_size must be model\.d_model \(16\)"),
        (MODEL.replace(positions="relative_bias"), r"set model\.positions learned"),
    ):
        with pytest.raises(InputError, match=message):
            shapes(lambda rngs, model=model: Bound(model, objective(), rngs=rngs))


def test_a_bag_of_words_is_of_one_document():
    assert objective().unpackable == ""
    assert "the words of a row" in objective(bag_of_words=0.1).unpackable
