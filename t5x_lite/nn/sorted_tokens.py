"""Tokens in the order of what runs them: what no token chose is not run.

    blocks = in_blocks(chosen, num=4)                   # chosen [M]: the number of each token's own
    rows = blocks.taken(x)                              # x [M, D] -> [N, S, D]
    made = over_blocks(blocks, rows, lambda rows, number: ...)
    blocks.put_back(made)                               # [N, S, O] -> [M, O]

A block has S tokens of one number; at most one block of each number is not full, and blocks without
tokens are passed over. No token is dropped. (Gale et al. 2022, MegaBlocks, arXiv:2211.15841, has
blocks of this kind.)
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Int

from t5x_lite.types import Array

_BLOCK = 128


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Where the tokens stand.

    Attributes:
      token: the token in each slot; M, behind the last, in one that is empty.
      number: of each block.
      is_used: whether a block has tokens.
      total: M.
    """

    token: Int[Array, "N S"]
    number: Int[Array, " N"]
    is_used: Bool[Array, " N"]
    total: int

    def taken(self, x: Array) -> Array:
        """The tokens' [M, ...] in their blocks: [N, S, ...]; an empty slot repeats the last one."""
        return x[jnp.minimum(self.token, self.total - 1)]

    def put_back(self, made: Array) -> Array:
        """What was made of them [N, S, ...] in their first order: [M, ...]; 0 of those in none."""
        nothing = jnp.zeros((self.total, *made.shape[2:]), made.dtype)
        return nothing.at[self.token.reshape(-1)].set(
            made.reshape(-1, *made.shape[2:]), mode="drop"
        )


def in_blocks(chosen: Int[Array, " M"], num: int) -> Blocks:
    """The blocks of tokens.

    Args:
      chosen: the number of each token; one below 0, or of `num` and more, is in no block.
      num: how many numbers there are.
    """
    total = len(chosen)
    size = min(_BLOCK, total)
    own = jnp.where((chosen >= 0) & (chosen < num), chosen, num)
    counts = jnp.bincount(own, length=num + 1)[:num]
    blocks = -(-counts // size)
    ends = jnp.cumsum(blocks)
    # The block of place p of a number is its first block + p // size.
    order = jnp.argsort(own, stable=True)
    starts = jnp.cumsum(counts) - counts
    sorted_own = own[order]
    rank = jnp.arange(total) - jnp.append(starts, 0)[sorted_own]
    slots = jnp.append(ends - blocks, 0)[sorted_own] * size + rank
    num_blocks = total // size + num
    slots = jnp.where(sorted_own < num, slots, num_blocks * size)  # others fall out
    token = jnp.full((num_blocks * size,), total, jnp.int32).at[slots].set(order, mode="drop")
    number = jnp.minimum(jnp.searchsorted(ends, jnp.arange(num_blocks), side="right"), num - 1)
    is_used = jnp.arange(num_blocks) < ends[-1]
    return Blocks(token.reshape(num_blocks, size), number, is_used, total)


def over_blocks(blocks: Blocks, rows: Any, call: Callable[[Any, Array], Array]) -> Array:
    """What a function makes of each block that has tokens; zeros of the others.

    Args:
      blocks: of the tokens.
      rows: [N, S, ...], or a tree of such.
      call: (rows of a block, its number) -> [S, ...].
    """
    first = jax.tree.map(lambda x: x[0], rows)
    like = jax.eval_shape(call, first, blocks.number[0])

    def one(_: None, given: Any) -> tuple[None, Array]:
        own, number, is_used = given
        return None, jax.lax.cond(
            is_used, lambda: call(own, number), lambda: jnp.zeros(like.shape, like.dtype)
        )

    _, made = jax.lax.scan(one, None, (rows, blocks.number, blocks.is_used))
    return made
