"""What the tests of the encoders' objectives share: a tiny model, rows, random parameters."""

import jax
import jax.numpy as jnp
import numpy as np

from t5x_lite.models.encoder import BertConfig
from t5x_lite.nn.slots import bind, shapes
from t5x_lite.objectives.learner import Bound

VOCAB, LENGTH = 50, 12
CLS, SEP, MASK = 1, 2, 3

MODEL = BertConfig(
    vocab_size=VOCAB,
    d_model=16,
    d_ff=32,
    num_heads=2,
    num_layers=1,
    max_positions=16,
    token_types=2,
    unroll=True,
)


def rows(*, batch=3, seed=0, packed=False):
    """Documents [CLS] words [SEP] of words of one or two pieces, then padding."""
    rng = np.random.default_rng(seed)
    names = ("input_tokens", "segment_ids", "positions", "word_ids")
    row = {f"encoder_{name}": np.zeros((batch, LENGTH), np.int32) for name in names}
    for i in range(batch):
        sizes = [6, 5] if packed else [max(4, LENGTH - 2 * i)]
        place, word = 0, 0
        for segment, size in enumerate(sizes, 1):
            here = slice(place, place + size)
            row["encoder_input_tokens"][i, here] = [CLS, *rng.integers(10, VOCAB, size - 2), SEP]
            row["encoder_segment_ids"][i, here] = segment
            row["encoder_positions"][i, here] = np.arange(size)
            # Words of one piece and of two, in turn.
            ids = np.repeat(np.arange(size), np.tile([1, 2], size)[:size])[: size - 2]
            row["encoder_word_ids"][i, place + 1 : place + size - 1] = word + 1 + ids
            place, word = place + size, word + 1 + ids[-1]
    return {name: jnp.asarray(value) for name, value in row.items()}


def groups(queries, passages, *, lengths=(5, 6), teacher=None):
    """A batch of queries with passages given by their tokens, [] for one that is missing."""

    def padded(texts, length):
        tokens = np.zeros((len(texts), length), np.int32)
        for row, text in zip(tokens, texts, strict=True):
            row[: len(text)] = text
        return tokens

    tokens = padded(queries, lengths[0])
    under = np.stack([padded(row, lengths[1]) for row in passages])
    batch = {"query_tokens": tokens, "query_segment_ids": (tokens > 0).astype(np.int32)}
    batch |= {"passage_tokens": under, "passage_segment_ids": (under > 0).astype(np.int32)}
    if teacher is not None:
        batch["teacher_scores"] = np.asarray(teacher, np.float32)
    return {name: jnp.asarray(value) for name, value in batch.items()}


def learner(objective, model=MODEL, *, seed=0):
    """Its structure, and parameters away from their initial values."""
    graphdef, abstract, axes = shapes(lambda rngs: Bound(model, objective, rngs=rngs))
    return graphdef, random(abstract, seed=seed), axes


def random(abstract, *, seed=0):
    """Parameters of these shapes away from their initial values: the model's, then the heads'."""
    rng = np.random.default_rng(seed)

    def leaf(path, shape):
        scale = np.float32(0.3 * rng.standard_normal(shape.shape))
        return jnp.asarray(1.0 + scale if path[-1].key == "scale" else scale)

    parts = sorted(abstract, key=("model", "heads", "objective", "towers", "adapters").index)
    return {part: jax.tree_util.tree_map_with_path(leaf, abstract[part]) for part in parts}


def loss_of(graphdef, params, batch, key=None):
    return bind(graphdef, params)(batch, key=key)
