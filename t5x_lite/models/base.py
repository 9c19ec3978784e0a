"""Base classes of all architectures: the config, the embedding and the output layer."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float, Int

from t5x_lite.core.options import Count
from t5x_lite.core.sharding import constrain
from t5x_lite.core.tied_parameters import View
from t5x_lite.core.trees import Array
from t5x_lite.nn import cache as caching
from t5x_lite.nn.cache import Cache
from t5x_lite.nn.dense import FAN_IN_TRUNCATED, Dense, Embedding, FusedDense
from t5x_lite.nn.slots import GraphDef, bind, split

RowShapes = Mapping[str, tuple[int, ...]]
"""Shape of each feature in one row of a batch: (S,), or (N, S) for N texts per row."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Base class of model configs.

    Attributes:
      vocab_size: number of rows of the token embedding, at least the size of the vocabulary.
    """

    vocab_size: Count

    below: ClassVar[tuple[str, ...]] = ()
    """Paths of parameters below all layers: embeddings, and the few weights that layers share."""

    begins_with_cls: ClassVar[bool] = False
    """True if a row of tokens begins with [CLS]."""

    @property
    def longest_document(self) -> int | None:
        """Maximum length of a document in tokens; None without position embeddings."""
        return None

    @property
    def divided_heads(self) -> int | None:
        """Number of attention heads to divide over devices; None without attention heads."""
        return None

    def to_finetune(self) -> "ModelConfig | None":
        """Return the config with settings for fine-tuning, or None if that is unsupported."""
        return None

    def build(self, *, rngs: nnx.Rngs) -> nnx.Module:
        """Build the module with newly initialized parameters from the stream "params"."""
        raise TypeError(f"class {type(self).__name__} does not define the method build")

    def views(self, prefix: str = "") -> tuple[View, ...]:
        """Return the rules that convert tied parameters between stored form and the module's form.

        Args:
          prefix: prefix of the module's parameter paths, such as "model/".
        """
        return ()

    def without_views(self) -> Any:
        """Return the config of the same model without shared parameters."""
        return self

    def check_devices(self, kind: str, *, dtype: str) -> None:
        """Raise InputError if the devices or the dtype do not support the chosen attention."""

    def check_precision(self, precision: str, *, dtype: str) -> None:
        """Raise InputError if the model's matrix products do not support a precision.

        Args:
          precision: precision of float32 products: "default", "high" or "highest".
          dtype: compute dtype.
        """

    def more_remat(self) -> tuple[str, ...]:
        """Return the rematerialization policies that use less memory than the configured policy."""
        return ()

    def with_choices(
        self, kind: str, *, dtype: str, length: int, one_text_rows: bool
    ) -> tuple[Any, str]:
        """Return the config with each "auto" replaced by the fastest value for a run's devices.

        Args:
          kind: kind of the devices, as JAX names it.
          dtype: compute dtype.
          length: length of the longest row, in tokens.
          one_text_rows: True if each row of a batch holds one text followed by padding.

        Returns:
          The config, and a line of text with the new values and their reasons.
        """
        return self, ""

    def with_choices_of(self, earlier: Any) -> Any:
        """Return the config with each "auto" replaced by the value in another config."""
        fields = [field.name for field in dataclasses.fields(self)]
        taken = [name for name in fields if getattr(self, name) == "auto"]
        if "attention" in taken:
            taken += ["attention_block", "one_text_rows"]
        return self.replace(**{name: getattr(earlier, name) for name in taken})

    def unrolled(self) -> Any:
        """Return the config with layers compiled without a loop, if the model supports it."""
        return self

    def on_cpu(self) -> Any:
        """Return the config with the fastest settings for inference on a CPU."""
        return self

    def forward_flops(self, shapes: RowShapes) -> int | None:
        """Return the FLOPs of one forward pass for one row, or None if they are unknown.

        Only matrix products count, with 2 FLOPs for each multiplication. Padding and masked
        positions count, although a kernel may skip them. Sharing of parameters saves no FLOPs, and
        a relative bias costs none. A train step is three forward passes; recomputation by
        rematerialization does not count as useful work.

        Args:
          shapes: shapes of a row's features, by name; the model reads the features that it needs.
        """
        return None

    def replace(self, **changes: Any) -> Any:
        """Return a copy of the config with some fields replaced."""
        return dataclasses.replace(self, **changes)


class Output(NamedTuple):
    """Kernel of the output layer: logits are hidden states times kernel, divided by `divisor`.

    Attributes:
      kernel: weights [V, D] or [D, V].
      axes: logical axes of the kernel: ("vocab", "embed") or ("embed", "vocab").
      divisor: divisor of the float32 matrix product.
    """

    kernel: Array
    axes: tuple[str, str]
    divisor: float


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepared:
    """Model prepared for decoding, as a pytree that compiled functions can return and take.

    Attributes:
      graphdef: structure of the prepared model.
      params: arrays of the prepared model.
    """

    graphdef: GraphDef = dataclasses.field(metadata={"static": True})
    params: Any

    def prefill(
        self, inputs: Int[Array, "B S"], *, max_length: int, prompt: Int[Array, "B P"] | None = None
    ) -> tuple[Float[Array, "B V"], Cache]:
        """Read inputs and prompt in one pass; return next-token logits and a decoding cache."""
        return self._model().prefill(inputs, max_length=max_length, prompt=prompt)

    def step(self, tokens: Int[Array, " R"], cache: Cache) -> tuple[Float[Array, "R V"], Cache]:
        """Decode one more token in each row; return the logits and the updated cache."""
        return self._model().step(tokens, cache)

    def repeat(self, cache: Cache, num: int) -> Cache:
        return caching.repeat(cache, num)

    def select(self, cache: Cache, rows: Int[Array, " R"]) -> Cache:
        return caching.select(cache, rows)

    def with_adapter_ids(self, ids: Int[Array, " B"]) -> "Prepared":
        """Return the model with the given adapter index for each batch row."""

        def of_batch(path: Any, leaf: Array) -> Array:
            is_ids = getattr(path[-1], "key", None) == "ids"
            return jnp.broadcast_to(ids, (*leaf.shape[:-1], len(ids))) if is_ids else leaf

        params = jax.tree_util.tree_map_with_path(of_batch, self.params)
        return dataclasses.replace(self, params=params)

    def _model(self) -> Any:
        return bind(self.graphdef, self.params)


class TokenModel(nnx.Module):
    """Base class of token models: the token embedding, and the output layer of decoders.

    Attributes:
      token_embedding: token embedding.
      tied: True if the output layer is the token embedding; if False, it is `lm_head`.
      joint_output: kernel of the output layer in a model prepared for decoding, or None.
    """

    token_embedding: Embedding
    tied: bool
    lm_head: Dense
    joint_output: FusedDense | None = None

    def make_output(self, d_model: int, vocab_size: int, *, tied: bool, rngs: nnx.Rngs) -> None:
        """Add the output layer; constructors call it last, because it uses `rngs`."""
        self.tied = tied
        if not tied:
            self.lm_head = Dense(
                d_model,
                vocab_size,
                axes=("embed", "vocab"),
                initializer=FAN_IN_TRUNCATED,
                rngs=rngs,
            )

    def embed(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        return constrain(self.token_embedding(tokens), "batch", "length", "activation_embed")

    def token_table(self) -> Float[Array, "V D"]:
        return self.token_embedding.table[...]

    def logits(self, hidden: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
        """Return next-token logits in float32."""
        if self.joint_output is not None:
            (logits,) = self.joint_output.products(hidden)
            logits = logits / math.sqrt(hidden.shape[-1]) if self.tied else logits
        elif self.tied:
            logits = self.token_embedding.logits(hidden)
        else:
            logits = self.lm_head.product(hidden)
        return constrain(logits, "batch", "length", "vocab")

    def output(self) -> Output:
        """Return the kernel of the output layer, for losses that never store all logits at once."""
        if self.tied:
            table = self.token_embedding.table[...]
            return Output(table, ("vocab", "embed"), math.sqrt(table.shape[1]))
        return Output(self.lm_head.kernel[...], ("embed", "vocab"), 1.0)

    def prepared(self) -> "Prepared":
        """Return a copy of the model that is prepared for decoding."""
        graphdef, params, _ = split(self)
        model = bind(graphdef, params)
        mesh = jax.sharding.get_abstract_mesh()
        model.lay_out(join=mesh is None or mesh.empty or mesh.size == 1)
        graphdef, params, _ = split(model)
        return Prepared(graphdef=graphdef, params=params)

    def lay_out(self, *, join: bool) -> None:
        """Rearrange the weights for fast decoding, in place.

        Args:
          join: True to fuse dense layers of the same input, such as query, key and value, into one
            matrix product.
        """
        raise TypeError(f"{type(self).__name__} has no decoder")

    def join_output(self) -> None:
        """Transpose the kernel of the output layer for decoding, in place."""
        kernel, axes, _ = self.output()
        if not self.tied:
            kernel, axes = kernel.T, (axes[1], axes[0])
            del self.lm_head
        self.joint_output = FusedDense([kernel], axes=axes)

    def repeat(self, cache: Cache, num: int) -> Cache:
        """Repeat each row of the decoding cache `num` times."""
        return caching.repeat(cache, num)

    def select(self, cache: Cache, rows: Int[Array, " R"]) -> Cache:
        """Select rows of the decoding cache, as in a beam search."""
        return caching.select(cache, rows)


def hidden_size(model: ModelConfig) -> int | None:
    """Return d_model of a config, or None if the config has no such field."""
    return getattr(model, "d_model", None)
