"""Prompt tuning: rows that stand before those of the tokens (Lester et al. 2021, arXiv:2104.08691).

    encoder([p1 ... pP, embedded tokens])        p [P, D] trains, the rest is frozen

They stand where the embeddings are done (after norm and dropout in BERT), have no position in a
table, and the tokens keep theirs; in a relative bias and in DeBERTa they are P positions to the
left. The rows are cut off what an encoder gives; the decoder of a T5 sees them across. They belong
to one text: rows must not be packed.

The paper's settings: P 100, Adafactor without the scale of parameters at a constant rate of 0.3,
decay 1e-5, on a T5 1.1 that was trained further as a language model.
"""

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float

from t5x_lite.adapters.base import Adapter
from t5x_lite.adapters.places import Modules
from t5x_lite.errors import InputError
from t5x_lite.nn.embedding import lookup
from t5x_lite.nn.slots import TokenHost
from t5x_lite.types import Array

Start = Literal["uniform", "vocab"]


_AMONG = 3, 5003


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prompt(Adapter):
    """Rows before the tokens of an encoder.

    Attributes:
      sites: "prompt".
      length: P.
      init: "uniform", from -0.5 to 0.5; "vocab", rows of the table of tokens, drawn by the seed:
        the parameters are the differences from them, 0 at first.
      among: the token ids, from the first to before the second, of which "vocab" draws. The first
        tokens of a WordPiece vocabulary are none of a language: (1996, 6996) are those of BERT.
      seed: of that draw.
    """

    name: str = "prompt"
    sites: tuple[str, ...] = ("prompt",)
    length: int = 10
    init: Start = "uniform"
    among: tuple[int, int] = _AMONG
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sites != ("prompt",):
            raise InputError(f"the site of a prompt is 'prompt': got {self.sites}")
        if self.length < 1:
            raise InputError(f"length of a prompt must be at least 1: got {self.length}")
        if not 0 <= self.among[0] < self.among[1]:
            raise InputError(f"among must be two token ids, the smaller first: got {self.among}")

    @property
    def unpackable(self) -> str:
        """A prompt stands before a row."""
        return "a prompt stands before rows"

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> Modules:
        """Makes the rows.

        Raises:
          InputError: the model has no encoder, or its table is smaller or of other columns.
        """
        if not isinstance(model, TokenHost):
            raise InputError(
                f"a {type(model).__name__} has no encoder before whose tokens a prompt stands: "
                "prefix() is for any attention"
            )
        rows, columns = model.token_table().shape
        kernel = next(iter(model.stacks()["encoder"].dense_sites().values())).kernel
        d_model, ids = kernel.shape[-2], None
        if self.init == "vocab":
            if columns != d_model:
                raise InputError(
                    f"init 'vocab' needs a table of tokens of d_model {d_model} columns, and it "
                    f"has {columns}: use init='uniform'"
                )
            first, end = self.among
            if self.among == _AMONG:  # the first tokens of a smaller table
                end = min(end, rows)
            if end > rows:
                raise InputError(
                    f"adapter {self.name!r}: among {self.among} is beyond the table of tokens, "
                    f"which has {rows} rows: give among=({first}, {rows})"
                )
            ids = np.random.default_rng(self.seed).integers(first, end, size=self.length)
        shape = (self.length, d_model)
        start = jnp.zeros(shape, jnp.float32)
        if ids is None:
            start = jax.random.uniform(rngs.params(), shape, jnp.float32, -0.5, 0.5)
        return Modules({"encoder": {"prompt": PromptRows(start, ids)}})


class PromptRows(nnx.Module):
    """A `TokenSlot`.

    Args:
      start: the parameters at the start [P, D].
      ids: tokens [P] whose rows are added to them; None is none.
    """

    def __init__(self, start: Array, ids: np.ndarray | None):
        self.rows = nnx.Param(start, logical=(None, "embed"))
        self.ids = None if ids is None else tuple(map(int, ids))

    @property
    def length(self) -> int:
        """P."""
        return self.rows.shape[0]

    def __call__(
        self, x: Float[Array, "B S D"], table: Float[Array, "V _"]
    ) -> Float[Array, "B L D"]:
        """The rows, and behind them those of the tokens: [B, P + S, D].

        Args:
          x: embedded tokens.
          table: of the tokens.
        """
        rows: Any = self.rows[...]
        if self.ids is not None:
            rows = rows + lookup(table, jnp.asarray(self.ids))
        rows = jnp.broadcast_to(rows.astype(x.dtype), (len(x), *rows.shape))
        return jnp.concatenate([rows, x], axis=1)
