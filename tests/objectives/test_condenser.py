"""Condenser: its states, its masks, packed rows, and what it refuses."""

import dataclasses
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import flatten
from t5x_lite.models.deberta import DebertaConfig
from t5x_lite.models.vector_heads import Dense
from t5x_lite.nn.slots import bind, split
from t5x_lite.objectives import masked_lm
from t5x_lite.objectives.learner import heads_of
from t5x_lite.objectives.masked_lm import MaskedLM
from t5x_lite.objectives.retromae import Condenser, head_layer
from tests.objectives.encoder_rows import LENGTH, MASK, MODEL, VOCAB, learner, loss_of, rows

BATCH = rows()
DEEP = MODEL.replace(num_layers=3, unroll=1)


def objective(**changes):
    return Condenser(mask_id=MASK, **changes)


def head_layers(bound, read, pattern):
    """The head's layers, one after the other."""
    graphdef, params, _ = split(bound.objective.condenser)
    for number in range(2):
        layer = jax.tree.map(operator.itemgetter(number), params)
        read = bind(graphdef, layer)(read, pattern=pattern)
    return read


def test_the_head_reads_early_states_and_each_documents_last_cls():
    packed = rows(packed=True)
    graphdef, params, _ = learner(objective(skip_from=1), DEEP)
    tokens, segments = packed["encoder_input_tokens"], packed["encoder_segment_ids"]

    @jax.jit
    def both(params):
        bound = bind(graphdef, params)
        x, mask = bound.model.start(tokens, segment_ids=segments)
        early = bound.model.apply_layers(x, mask=mask, part=(0, 1))
        late = bound.model.apply_layers(x, mask=mask)
        # Documents of 6 and 5 tokens: the head has their last [CLS] states, and no early ones.
        first = jnp.asarray(np.isin(np.arange(LENGTH), [0, 6])[None, :, None])
        read = jnp.where(first, late, early)
        expected = head_layers(bound, read, bound.model.pattern(mask, LENGTH))
        return (late, expected), bound.objective.states(bound.model, tokens, packed)

    expected, found = both(params)
    real = np.asarray(segments > 0)
    for here, there in zip(expected, found, strict=True):
        np.testing.assert_allclose(np.asarray(there)[real], np.asarray(here)[real], atol=2e-6)


@pytest.mark.parametrize("skip_from", [0, 3])
@pytest.mark.slow
def test_any_layer_may_be_skipped_from(skip_from):
    model = DEEP if skip_from else DEEP.replace(embedding_size=8)
    graphdef, params, _ = learner(objective(skip_from=skip_from), model)
    loss = jax.jit(loss_of, static_argnums=0)(graphdef, params, BATCH, jax.random.key(0))
    assert set(loss.terms) == {"head", "late"}
    assert jnp.isfinite(loss.value())


def test_parts_of_the_layers_draw_the_dropout_of_the_whole():
    graphdef, params, _ = learner(objective(), DEEP)

    @jax.jit
    def both(params):
        model, key = bind(graphdef, params).model, jax.random.key(3)
        x, mask = model.start(BATCH["encoder_input_tokens"])
        half = model.apply_layers(x, mask=mask, key=key, part=(0, 2))
        assert model.apply_layers(x, mask=mask, part=(1, 1)) is x
        whole = model.apply_layers(x, mask=mask, key=key)
        return whole, model.apply_layers(half, mask=mask, key=key, part=(2, 3))

    whole, parts = both(params)
    np.testing.assert_allclose(parts, whole, atol=1e-5)


@pytest.mark.slow
def test_the_late_loss_is_that_of_a_masked_language_model():
    still = DEEP.replace(dropout_rate=0.0, attention_dropout_rate=0.0)
    graphdef, params, _ = learner(objective(), still)

    @jax.jit
    def both(params, key):
        bound, config = bind(graphdef, params), objective()
        noise, _ = masked_lm.noise_and_dropout(key)
        inputs, slots = config.draw(BATCH, vocab_size=VOCAB, pad_id=0, key=noise)
        states = bound.model(inputs, segment_ids=BATCH["encoder_segment_ids"])
        logits = bound.heads["mlm"](
            masked_lm.at_slots(states, slots), bound.model.tables()["token"]
        )
        targets = masked_lm.at_slots(BATCH["encoder_input_tokens"], slots)
        own = jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], axis=-1)[..., 0]
        return -jnp.sum(own * slots.used), loss_of(graphdef, params, BATCH, key)

    expected, loss = both(params, jax.random.key(1))
    np.testing.assert_allclose(loss.terms["late"].total, expected, rtol=1e-5)
    assert loss.terms["late"].weight == loss.terms["head"].weight


@pytest.mark.slow
def test_special_tokens_do_not_count():
    # 10 words of one piece, [CLS] and [SEP]: round(.25 * 10) is 2, and of 12 tokens it would be 3.
    batch = {
        "encoder_input_tokens": jnp.arange(10, 22)[None].at[0, 0].set(1).at[0, 11].set(2),
        "encoder_word_ids": jnp.array([[0, *range(1, 11), 0]]),
    }
    vocabulary = {"vocab_size": VOCAB, "pad_id": 0, "key": jax.random.key(0)}
    _, slots = objective(ratio=0.25).draw(batch, **vocabulary)
    assert float(slots.used.sum()) == 2
    _, slots = MaskedLM(mask_id=MASK, ratio=0.25).draw(batch, **vocabulary)
    assert float(slots.used.sum()) == 3


@pytest.mark.slow
def test_words_are_masked_whole_and_one_that_exceeds_the_count_is_passed_over():
    # Two words of 3 pieces and one of 1: of 7 tokens round(.3 * 7) = 2 may be masked: the one.
    batch = {
        "encoder_input_tokens": jnp.array([[1, 11, 12, 13, 14, 15, 16, 17, 2]]),
        "encoder_word_ids": jnp.array([[0, 1, 1, 1, 2, 2, 2, 3, 0]]),
    }
    for seed in range(20):
        _, slots = objective(ratio=0.3).draw(
            batch, vocab_size=VOCAB, pad_id=0, key=jax.random.key(seed)
        )
        assert slots.positions[slots.used > 0].tolist() == [7]


@pytest.mark.slow
def test_packed_documents_have_the_states_that_they_have_alone():
    packed = rows(batch=1, packed=True)
    graphdef, params, _ = learner(objective(skip_from=1), DEEP)

    @jax.jit
    def states(params, batch):
        bound = bind(graphdef, params)
        return bound.objective.states(bound.model, batch["encoder_input_tokens"], batch)[1]

    together = states(params, packed)
    for start, size in ((0, 6), (6, 5)):
        alone = {name: value[:, start : start + size] for name, value in packed.items()}
        alone["encoder_segment_ids"] = jnp.ones((1, size), jnp.int32)
        expected = states(params, alone)
        np.testing.assert_allclose(together[:, start : start + size], expected, atol=1e-5)


@pytest.mark.slow
def test_without_the_late_loss_it_is_logged_all_the_same():
    alone, params, _ = learner(objective(late_mlm=False), DEEP)
    both, _, _ = learner(objective(), DEEP)
    first, second = (
        jax.jit(loss_of, static_argnums=0)(graphdef, params, BATCH, jax.random.key(0))
        for graphdef in (alone, both)
    )
    assert set(first.terms) == {"head"}
    assert first.metrics["late_cross_entropy"] == second.metrics["late_cross_entropy"]


def test_parameters_have_names_of_their_own():
    _, params, _ = learner(objective(head_layers=3), DEEP)
    found = flatten(params["objective"])
    assert all(path.startswith("condenser/") for path in found)
    assert {leaf.shape[0] for leaf in found.values()} == {3}
    assert [type(head).__name__ for head in objective().heads({})] == ["Mlm", "Dense"]
    kept = {"dense": Dense(pooling="mean", normalize=False)}
    assert heads_of(objective(), tuple(kept.values()))["dense"].pooling == "cls"


def test_narrow_layers_begin_wider():
    assert head_layer(MODEL).initializer_stddev == 0.25  # 16 ** -0.5
    assert head_layer(MODEL.replace(d_model=256)).initializer_stddev == 0.02


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head_layers": 0}, r"objective\.head_layers must be at least 1: got 0"),
        ({"skip_from": -1}, r"objective\.skip_from must be at least 0: got -1"),
        ({"ratio": 1.0}, r"objective\.ratio must be in \(0, 1\): got 1.0"),
    ],
)
def test_wrong_fields_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        objective(**changes)


def test_wrong_models_are_refused():
    with pytest.raises(InputError, match=r"skip_from 4 must be at most model\.num_layers, 3"):
        learner(objective(skip_from=4), DEEP)
    fields = {"vocab_size": VOCAB, "d_model": 16, "d_ff": 32, "num_heads": 2, "num_layers": 2}
    with pytest.raises(
        InputError, match="needs a BertConfig, but the model is DebertaConfig; the Cond"
    ):
        learner(objective(), DebertaConfig(**fields))
    with pytest.raises(InputError, match=r"objective\.mask_id 3 must be below"):
        learner(objective(), DEEP.replace(vocab_size=3))


def test_flops_count_the_heads_layers_and_two_reads_of_the_table():
    config, shapes = objective(), {"encoder_input_tokens": (LENGTH,)}
    more = dataclasses.replace(config, head_layers=3).forward_flops(DEEP, shapes)
    assert more - config.forward_flops(DEEP, shapes) == DEEP.layer_flops(LENGTH)
    alone = MaskedLM(mask_id=MASK).forward_flops(DEEP, shapes)
    slots = masked_lm.most(LENGTH, config.ratio)
    expected = alone + 2 * DEEP.layer_flops(LENGTH) + DEEP.masked_lm_head_flops(slots)
    assert config.forward_flops(DEEP, shapes) == expected


def test_a_fresh_head_on_a_trained_condenser_is_warned_of():
    assert "a new head damages it" in objective().anew(objective(head_layers=1))
    assert objective().anew(MaskedLM(mask_id=MASK)) == ""
