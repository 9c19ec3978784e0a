"""What the tests of adapters share: a tiny model of each family with its objective and a batch."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from t5x_lite.models.deberta import DebertaConfig
from t5x_lite.models.encoder import BertConfig
from t5x_lite.models.t5 import T5Config
from t5x_lite.objectives.learner import Learner
from t5x_lite.objectives.likelihood import Seq2Seq
from t5x_lite.objectives.task_heads import Classify
from t5x_lite.optim.config import AdamW, Constant

SIZES = {"vocab_size": 16, "d_model": 8, "d_ff": 16, "num_heads": 2, "dropout_rate": 0.0}
ENCODER = {**SIZES, "num_layers": 2, "max_positions": 8, "attention_dropout_rate": 0.0}
LABELLED = {
    "encoder_input_tokens": jnp.array([[1, 5, 2, 0], [1, 6, 7, 2]] * 4),
    "encoder_segment_ids": jnp.array([[1, 1, 1, 0], [1, 1, 1, 1]] * 4),
    "labels": jnp.array([[1, 0], [2, 0]] * 4),
}
PAIRS = {
    "encoder_input_tokens": jnp.array([[5, 6, 7, 1], [8, 1, 0, 0]] * 4),
    "decoder_input_tokens": jnp.array([[0, 9, 10], [0, 11, 0]] * 4),
    "decoder_target_tokens": jnp.array([[9, 10, 1], [11, 1, 0]] * 4),
    "decoder_loss_weights": jnp.array([[1, 1, 1], [1, 1, 0]] * 4),
}
HOSTS = {
    "t5": (
        T5Config(**SIZES, d_kv=4, num_encoder_layers=2, num_decoder_layers=2),
        Seq2Seq(),
        PAIRS,
    ),
    "bert": (BertConfig(**ENCODER), Classify(num_classes=2), LABELLED),
    "deberta": (DebertaConfig(**ENCODER, position_buckets=4), Classify(num_classes=2), LABELLED),
}


def learner(host, *adapters, **options):
    """The learner of a family's model, and its batch."""
    return _learner(host, adapters, **options), HOSTS[host][2]


@functools.cache
def _learner(host, adapters, **options):
    model, objective, _ = HOSTS[host]
    optimizer = AdamW(schedule=Constant(value=0.05), weight_decay=0.3)
    return Learner.of(model, objective, adapters=adapters, optimizer=optimizer, **options)


def random(shapes, *, seed=0):
    """Parameters of these shapes away from their initial values."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda leaf: jnp.asarray(0.3 * rng.standard_normal(leaf.shape).astype(np.float32)), shapes
    )


def decoded(model, inputs, tokens, **prompt):
    """Logits of a prefill and then of a step for each column of tokens."""
    logits, cache = model.prefill(inputs, max_length=tokens.shape[1] + 1, **prompt)
    rows = [logits]
    for column in tokens.T:
        logits, cache = model.step(column, cache)
        rows.append(logits)
    return jnp.stack(rows, axis=1)


def outputs(made, params, batch):
    """What the model gives: logits of tokens, or states."""
    model = made.bind_model(params)
    if "decoder_input_tokens" in batch:
        return model(batch["encoder_input_tokens"], batch["decoder_input_tokens"])
    return model(batch["encoder_input_tokens"], segment_ids=batch["encoder_segment_ids"])
