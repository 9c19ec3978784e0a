"""The base of all architectures: the config, the embedding and the output layer."""

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
from t5x_lite.nn.bind import GraphDef, bind, split
from t5x_lite.nn.cache import Cache
from t5x_lite.nn.dense import FAN_IN_TRUNCATED, Dense, Embedding, FusedDense

RowShapes = Mapping[str, tuple[int, ...]]
"""Feature -> its shape in one row of a batch: (S,), or (N, S) of several texts."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Base of the architectures' configs.

    Attributes:
      vocab_size: rows of the embedding, the vocabulary's size rounded up.
    """

    vocab_size: Count

    below: ClassVar[tuple[str, ...]] = ()
    """Paths of parameters below all layers: embeddings, and the few weights that layers share."""

    begins_with_cls: ClassVar[bool] = False
    """True if a row of tokens begins with [CLS]."""

    @property
    def longest_document(self) -> int | None:
        """Maximum tokens of a document; None without position embeddings."""
        return None

    @property
    def divided_heads(self) -> int | None:
        """Attention heads that the mesh axis "tensor" must divide; None without attention heads."""
        return None

    def to_finetune(self) -> "ModelConfig | None":
        """Return the config for fine-tuning on labelled data, or None without a known recipe."""
        return None

    def build(self, *, rngs: nnx.Rngs) -> nnx.Module:
        """Make the module with newly initialized parameters from the stream "params"."""
        raise TypeError(f"{type(self).__name__} does not define build")

    def views(self, prefix: str = "") -> tuple[View, ...]:
        """Return the views that compute the module's parameters from stored ones.

        Args:
          prefix: prefix of the module's parameter paths, such as "model/".
        """
        return ()

    def without_views(self) -> Any:
        """Return the config of the same model without views: each of its parameters is stored."""
        return self

    def check_devices(self, kind: str, *, dtype: str) -> None:
        """Raise InputError if the model would not run on the devices as its config says."""

    def check_precision(self, precision: str, *, dtype: str) -> None:
        """Raise InputError for a precision that the model's matrix products do not support.

        Args:
          precision: precision of float32 products: "default", "high" or "highest".
          dtype: the compute dtype.
        """

    def more_remat(self) -> tuple[str, ...]:
        """Return the values of `remat` that store fewer activations; () without this field."""
        return ()

    def with_choices(
        self, kind: str, *, dtype: str, length: int, one_text_rows: bool
    ) -> tuple[Any, str]:
        """Return the config with the values "auto" resolved for a run.

        Args:
          kind: kind of the devices, as JAX names it.
          dtype: the compute dtype.
          length: length of the longest row, in tokens.
          one_text_rows: True if each row of a batch holds one text with its padding behind it.

        Returns:
          The config, and a line with the choices and their reasons; "" without choices.
        """
        return self, ""

    def with_choices_of(self, earlier: Any) -> Any:
        """Return the config with the values "auto" resolved from the config of a run."""
        fields = [field.name for field in dataclasses.fields(self)]
        taken = [name for name in fields if getattr(self, name) == "auto"]
        if "attention" in taken:
            taken += ["attention_block", "one_text_rows"]
        return self.replace(**{name: getattr(earlier, name) for name in taken})

    def unrolled(self) -> Any:
        """Return the same model with its layers as straight-line code, if it supports that."""
        return self

    def on_cpu(self, *, dtype: str) -> Any:
        """Return the same model with the fastest choices for inference on a CPU."""
        return self

    def forward_flops(self, shapes: RowShapes) -> int | None:
        """Return the FLOPs of one forward pass for one row, or None if they are unknown.

        Matrix products only, 2 for each multiplication. Padding counts, and so do masked positions:
        they are computed, though a kernel may skip them. Sharing of parameters saves no FLOPs, and
        a relative bias costs none. A train step is three forward passes; recomputation by
        rematerialization is not counted as useful work.

        Args:
          shapes: shapes of a row's features, by name; the model reads the ones that it needs.
        """
        return None

    def replace(self, **changes: Any) -> Any:
        """Return a copy with other field values."""
        return dataclasses.replace(self, **changes)


class Output(NamedTuple):
    """An output layer taken apart: logits are hidden states times the kernel, over the divisor.

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
    """A model laid out for decoding; a pytree, to be made by one compiled function for others.

    Attributes:
      graphdef: structure of the prepared model.
      params: arrays of the prepared model.
    """

    graphdef: GraphDef = dataclasses.field(metadata={"static": True})
    params: Any

    def prefill(
        self, inputs: Int[Array, "B S"], *, max_length: int, prompt: Int[Array, "B P"] | None = None
    ) -> tuple[Float[Array, "B V"], Cache]:
        """Return the model's prefill."""
        return self._model().prefill(inputs, max_length=max_length, prompt=prompt)

    def step(self, tokens: Int[Array, " R"], cache: Cache) -> tuple[Float[Array, "R V"], Cache]:
        """Return the model's step."""
        return self._model().step(tokens, cache)

    def repeat(self, cache: Cache, num: int) -> Cache:
        """Return the model's repeat."""
        return caching.repeat(cache, num)

    def select(self, cache: Cache, rows: Int[Array, " R"]) -> Cache:
        """Return the model's select."""
        return caching.select(cache, rows)

    def with_adapter_ids(self, ids: Int[Array, " B"]) -> "Prepared":
        """Return the model for a batch with an adapter id for each row; see `Learner.bind`."""

        def of_batch(path: Any, leaf: Array) -> Array:
            is_ids = getattr(path[-1], "key", None) == "ids"
            return jnp.broadcast_to(ids, (*leaf.shape[:-1], len(ids))) if is_ids else leaf

        params = jax.tree_util.tree_map_with_path(of_batch, self.params)
        return dataclasses.replace(self, params=params)

    def _model(self) -> Any:
        return bind(self.graphdef, self.params)


class TokenModel(nnx.Module):
    """The base of models over tokens: the embedding, and the output layer of decoders.

    Attributes:
      token_embedding: the token embedding.
      tied: True if the output layer is the token embedding; otherwise it is `lm_head`.
      joint_output: kernel of the output layer in a model prepared for decoding.
    """

    token_embedding: Embedding
    tied: bool
    lm_head: Dense
    joint_output: FusedDense | None = None

    def make_output(self, d_model: int, vocab_size: int, *, tied: bool, rngs: nnx.Rngs) -> None:
        """Add the output layer; the last call of a constructor, because it uses `rngs`."""
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
        """Return token embeddings."""
        return constrain(self.token_embedding(tokens), "batch", "length", "activation_embed")

    def token_table(self) -> Float[Array, "V D"]:
        """Return the table of tokens."""
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
        """Return the matrix of `logits`, for a loss that never has all logits at once."""
        if self.tied:
            table = self.token_embedding.table[...]
            return Output(table, ("vocab", "embed"), math.sqrt(table.shape[1]))
        return Output(self.lm_head.kernel[...], ("embed", "vocab"), 1.0)

    def prepared(self) -> "Prepared":
        """Return the model laid out for decoding, or itself if its layers are scanned.

        To be called once for many searches: it copies the decoder's weights. On several devices
        the products stay as they are split.
        """
        graphdef, params, _ = split(self)
        model = bind(graphdef, params)
        mesh = jax.sharding.get_abstract_mesh()
        model.lay_out(join=mesh is None or mesh.empty or mesh.size == 1)
        graphdef, params, _ = split(model)
        return Prepared(graphdef=graphdef, params=params)

    def lay_out(self, *, join: bool) -> None:
        """Lay the weights out for decoding, in place.

        Args:
          join: True if the products of one input become one.
        """
        raise TypeError(f"{type(self).__name__} has no decoder")

    def join_output(self) -> None:
        """Lay the output's kernel out for decoding, in place."""
        kernel, axes, _ = self.output()
        if not self.tied:
            kernel, axes = kernel.T, (axes[1], axes[0])
            del self.lm_head
        self.joint_output = FusedDense([kernel], axes=axes)

    def repeat(self, cache: Cache, num: int) -> Cache:
        """Repeat each row of the cache `num` times, without copies of the inputs' keys."""
        return caching.repeat(cache, num)

    def select(self, cache: Cache, rows: Int[Array, " R"]) -> Cache:
        """Return the cache of the given rows; each row continues a row of the same input."""
        return caching.select(cache, rows)


def hidden_size(model: ModelConfig) -> int | None:
    """Return d_model of a config, or None if it has no such field."""
    return getattr(model, "d_model", None)
