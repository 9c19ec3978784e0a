"""Which passages of a batch a query is compared with: its own, and those that are no answer to it.

    queries a b, two passages each: a answers 20, hard negative 30; b answers 21, hard negative 20
    batch      a: 20 30 21 .       b: 20 30 21 .        (of the two 20 the first counts for b)
    group      a: 20 30 . .        b: .  .  21 20

A row whose feature "own_negatives" [B] is 1 is compared with its own passages, and they with it, as
`group` is, whatever the others are: a passage of a class or a cluster may answer other queries.

Left out are padding; a passage of the same tokens as one that answers the query, in any row that
asks it; passages that the data name as answers, by ids (features "passage_ids" [B, P, 4] and
"positive_ids" [B, K, 4], where zeros are none); and of passages of the same tokens all but the
first.
FlagEmbedding, Tevatron and RetroMAE's code leave out none of them, so that answers are pushed away.

Texts are compared by two hashes of 32 bits, so that a batch of 2,048 passages costs as many numbers
and not four million rows of tokens. Two texts of one key (about 2^-64) would be one.
"""

import re

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Int, UInt32

from t5x_lite.data.config import OWN_NEGATIVES
from t5x_lite.errors import InputError
from t5x_lite.types import Array, Batch

BATCH, GROUP = "batch", "group"
_BLOCK = re.compile(r"block:([1-9]\d*)")
_SEEDS = (0x9E3779B1, 0x85EBCA77)


def check_scope(scope: str) -> None:
    """Refuses, by an InputError, what is none of batch, block:N and group."""
    if scope not in (BATCH, GROUP) and not _BLOCK.fullmatch(scope):
        raise InputError(
            f"objective.candidates must be batch, group or block:N, such as block:32, got {scope!r}"
        )


def block_size(scope: str) -> int | None:
    """The rows of a block, of the scope "block:N"; None of the others."""
    block = _BLOCK.fullmatch(scope)
    return int(block.group(1)) if block else None


def candidates(batch: Batch, scope: str = BATCH) -> Bool[Array, "B N"]:
    """Which passages of the batch, N of them, each query is compared with.

    Args:
      batch: of the layout Groups(), B rows of N / B passages.
      scope: "batch", "group" (a row's own passages), or "block:N" (those of N rows that follow each
        other in the batch, whatever the devices).
    """
    may = _wrong_or_own(batch, scope)
    return _first_of_each(may, _passage_keys(batch)) | _own(batch)


def asking(batch: Batch, scope: str = BATCH) -> Bool[Array, "B B"]:
    """Which queries each row's first passage is compared with, for a symmetric loss.

    Those to which it is no answer, each once, and the row's own.

    Args:
      batch: as for `candidates`.
      scope: as for `candidates`.
    """
    rows, num = batch["passage_tokens"].shape[:2]
    firsts = _wrong_or_own(batch, scope)[:, ::num].T
    there = jnp.any(batch["query_segment_ids"] > 0, axis=1)
    return _first_of_each(firsts & there, _query_keys(batch)) | jnp.eye(rows, dtype=bool)


def others(batch: Batch, scope: str = BATCH) -> Bool[Array, "B N"]:
    """The negatives of other rows alone: no passage of the row's own group, nor one of its tokens.

    Args:
      batch: as for `candidates`.
      scope: as for `candidates`.
    """
    rows, num = batch["passage_tokens"].shape[:2]
    keys = _passage_keys(batch)

    def more(so_far: Array, own: Array) -> tuple[Array, None]:
        return so_far | jnp.all(own[:, None] == keys[None], axis=2), None

    groups = jnp.swapaxes(keys.reshape(rows, num, 2), 0, 1)
    of_group = jnp.arange(rows * num)[None] // num == jnp.arange(rows)[:, None]
    of_group, _ = jax.lax.scan(more, of_group, groups)
    return _first_of_each(_wrong_or_own(batch, scope) & ~of_group, keys)


def _wrong_or_own(batch: Batch, scope: str) -> Bool[Array, "B N"]:
    """The passages within reach that are no answer, duplicates of each other among them."""
    rows, num = batch["passage_tokens"].shape[:2]
    there = jnp.any(batch["passage_segment_ids"] > 0, axis=2).reshape(1, rows * num)
    wrong = there & ~_answers(batch) & ~_answers_by_id(batch)
    return (wrong | _own(batch)) & _within(rows, num, scope) & _allowed(batch)


def _answers(batch: Batch) -> Bool[Array, "B N"]:
    """Passages of the tokens of one that answers the query, in any row that asks it."""
    num = batch["passage_tokens"].shape[1]
    queries, passages = _query_keys(batch), _passage_keys(batch)
    asks = jnp.all(queries[:, None] == queries[None], axis=2)
    is_answer = jnp.all(passages[::num, None] == passages[None], axis=2)
    # A product of zeros and ones in place of a loop over B rows that ask the same.
    counts = jnp.einsum("BC,CN->BN", asks.astype(jnp.float32), is_answer.astype(jnp.float32))
    return counts > 0


def _answers_by_id(batch: Batch) -> Bool[Array, "B N"]:
    """Passages that the data name as answers of the query."""
    rows, num = batch["passage_tokens"].shape[:2]
    if "passage_ids" not in batch or "positive_ids" not in batch:
        return jnp.zeros((rows, rows * num), bool)
    ids = batch["passage_ids"].reshape(rows * num, -1)

    def one(known: Array) -> Array:
        same = jnp.all(known[:, None] == ids[None], axis=2)
        return same & jnp.any(ids > 0, axis=1)

    each = jnp.swapaxes(batch["positive_ids"], 0, 1)
    found, _ = jax.lax.scan(
        lambda so_far, known: (so_far | one(known), None), jnp.zeros((rows, rows * num), bool), each
    )
    return found


def _own(batch: Batch) -> Bool[Array, "B N"]:
    rows, num = batch["passage_tokens"].shape[:2]
    return jnp.arange(rows * num)[None] == jnp.arange(rows)[:, None] * num


def _within(rows: int, num: int, scope: str) -> Bool[Array, "B N"]:
    """The passages of the rows that share theirs with a row."""
    if scope == BATCH:
        return jnp.ones((rows, rows * num), bool)
    size = block_size(scope) or 1
    of_passages = jnp.arange(rows * num) // num // size
    return (jnp.arange(rows) // size)[:, None] == of_passages[None]


def _allowed(batch: Batch) -> Bool[Array, "B N"]:
    """All passages but those between rows of which one has its own negatives alone."""
    rows, num = batch["passage_tokens"].shape[:2]
    if OWN_NEGATIVES not in batch:
        return jnp.ones((rows, rows * num), bool)
    alone = batch[OWN_NEGATIVES] > 0
    return _within(rows, num, GROUP) | ~(alone[:, None] | jnp.repeat(alone, num)[None])


def _first_of_each(candidate: Bool[Array, "B N"], keys: UInt32[Array, "N 2"]) -> Bool[Array, "B N"]:
    """Of the candidates of a row that have one key, the first."""
    order = jnp.lexsort((keys[:, 1], keys[:, 0]))  # stable: of equal ones the first is first
    found, ordered = candidate[:, order], keys[order]
    begins = jnp.any(ordered != jnp.roll(ordered, 1, axis=0), axis=1).at[0].set(True)
    start = jax.lax.cummax(jnp.where(begins, jnp.arange(len(keys)), 0))
    before = jnp.cumsum(found, axis=1) - found
    first = found & (before == before[:, start])
    return jnp.zeros_like(candidate).at[:, order].set(first)


def _query_keys(batch: Batch) -> UInt32[Array, "B 2"]:
    return text_keys(batch["query_tokens"], batch["query_segment_ids"])


def _passage_keys(batch: Batch) -> UInt32[Array, "N 2"]:
    tokens = batch["passage_tokens"]
    shape = (-1, tokens.shape[-1])
    return text_keys(tokens.reshape(shape), batch["passage_segment_ids"].reshape(shape))


def text_keys(tokens: Int[Array, "N L"], segment_ids: Int[Array, "N L"]) -> UInt32[Array, "N 2"]:
    """Two hashes of each text's tokens and places; padding does not count.

    Args:
      tokens: ids.
      segment_ids: 0 is padding.
    """
    places = jnp.arange(tokens.shape[1], dtype=jnp.uint32)
    hashes = []
    for seed in _SEEDS:
        at = _mixed(places * jnp.uint32(2) + jnp.uint32(seed))
        each = _mixed((tokens.astype(jnp.uint32) + jnp.uint32(seed)) ^ at)
        hashes.append(jnp.sum(jnp.where(segment_ids > 0, each, 0), axis=1, dtype=jnp.uint32))
    return jnp.stack(hashes, axis=1)


def _mixed(x: UInt32[Array, "*_"]) -> UInt32[Array, "*_"]:
    """MurmurHash3's last step: every bit of a number changes every bit of the result."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        x = (x ^ (x >> shift)) * jnp.uint32(factor)
    return x ^ (x >> 16)
