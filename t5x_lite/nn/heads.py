"""What stands on an encoder's hidden states: masked language model, detection, classes, spans.

Each gives float32 logits. The tables that a masked language model's output shares with the
embedding come in as arrays, so that no module has two parents.
"""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float, Int

from t5x_lite.nn.activations import Activation, activate
from t5x_lite.nn.dense import Dense, truncated_normal
from t5x_lite.nn.dropout import dropout, split_key
from t5x_lite.nn.norms import LayerNorm
from t5x_lite.nn.products import einsum
from t5x_lite.sharding import constrain
from t5x_lite.types import Array, Key


def _dense(
    d_in: int, d_out: int, *, axes: tuple[str | None, str | None], stddev: float, rngs: nnx.Rngs
) -> Dense:
    init = truncated_normal(stddev)
    return Dense(d_in, d_out, axes=axes, initializer=init, bias=True, rngs=rngs)


class MaskedLMHead(nnx.Module):
    """Tokens from hidden states: LayerNorm(activation(dense(hidden))) table^T + bias.

    Source: google-research/bert run_pretraining.py, get_masked_lm_output.

    Args:
      d_model: size of the hidden states.
      embedding_size: columns of the table.
      vocab_size: rows of the table.
      activation: after the dense layer.
      norm_epsilon: of the norm.
      stddev: of the kernel at the start.
      rngs: the stream "params" is used.
    """

    def __init__(
        self,
        d_model: int,
        embedding_size: int,
        vocab_size: int,
        *,
        activation: Activation = "gelu",
        norm_epsilon: float = 1e-12,
        stddev: float = 0.02,
        rngs: nnx.Rngs,
    ):
        # Whole on each device of "tensor": the norm that follows sums over the features.
        self.dense = _dense(
            d_model,
            embedding_size,
            axes=("embed", None),
            stddev=stddev,
            rngs=rngs,
        )
        self.norm = LayerNorm(embedding_size, norm_epsilon)
        self.bias = nnx.Param(jnp.zeros((vocab_size,), jnp.float32), logical=("vocab",))
        self.activation: Activation = activation

    def __call__(
        self, hidden: Float[Array, "*batch D"], table: Float[Array, "V E"]
    ) -> Float[Array, "*batch V"]:
        """Logits of all tokens of the table.

        Args:
          hidden: states of the positions to predict.
          table: the embedding's.
        """
        x = self.transform(hidden).astype(table.dtype)
        batch = "ABCF"[: x.ndim - 1]
        logits = einsum(f"{batch}E,VE->{batch}V", x, table) + self.bias[...].astype(jnp.float32)
        return constrain(logits, "batch", "length", "vocab") if logits.ndim == 3 else logits

    def transform(self, hidden: Float[Array, "*batch D"]) -> Float[Array, "*batch E"]:
        """What is multiplied with the table."""
        x = activate(self.dense.product(hidden), self.activation)
        return self.norm(x.astype(hidden.dtype))


class ElectraRtdHead(nnx.Module):
    """Whether a token was replaced: dense -> activation -> one number (Clark et al. 2020).

    Args:
      d_model: size of the hidden states.
      activation: after the first layer.
      stddev: of the kernels at the start.
      rngs: the stream "params" is used.
    """

    def __init__(
        self,
        d_model: int,
        *,
        activation: Activation = "gelu",
        stddev: float = 0.02,
        rngs: nnx.Rngs,
    ):
        self.dense = _dense(
            d_model,
            d_model,
            axes=("embed", "mlp"),
            stddev=stddev,
            rngs=rngs,
        )
        self.out = _dense(
            d_model,
            1,
            axes=("mlp", None),
            stddev=stddev,
            rngs=rngs,
        )
        self.activation: Activation = activation

    def __call__(self, hidden: Float[Array, "B S D"]) -> Float[Array, "B S"]:
        """The logit of "replaced" at each position."""
        x = activate(self.dense.product(hidden), self.activation).astype(hidden.dtype)
        return self.out.product(x)[..., 0]


class DebertaRtdHead(nnx.Module):
    """DeBERTaV3's detection: w2 activation(W1 LayerNorm(h_i + h_CLS)) (He et al. 2021).

    Source: microsoft/DeBERTa, apps/models/replaced_token_detection_model.py.

    Args:
      d_model: size of the hidden states.
      activation: after the first layer.
      norm_epsilon: of the norm.
      stddev: of the kernels at the start.
      rngs: the stream "params" is used.
    """

    def __init__(
        self,
        d_model: int,
        *,
        activation: Activation = "gelu",
        norm_epsilon: float = 1e-7,
        stddev: float = 0.02,
        rngs: nnx.Rngs,
    ):
        self.norm = LayerNorm(d_model, norm_epsilon)
        self.dense = _dense(
            d_model,
            d_model,
            axes=("embed", "mlp"),
            stddev=stddev,
            rngs=rngs,
        )
        self.out = _dense(
            d_model,
            1,
            axes=("mlp", None),
            stddev=stddev,
            rngs=rngs,
        )
        self.activation: Activation = activation

    def __call__(
        self, hidden: Float[Array, "B S D"], *, positions: Int[Array, "B S"] | None = None
    ) -> Float[Array, "B S"]:
        """The logit of "replaced" at each position.

        Args:
          hidden: the encoder's states.
          positions: from 0 within each packed document, which begins with its own [CLS]; None is
            one document a row.
        """
        if positions is None:
            first = hidden[:, :1]
        else:
            starts = jnp.arange(hidden.shape[1])[None] - positions
            first = jnp.take_along_axis(hidden, starts[..., None], axis=1)
        x = self.norm(hidden + first)
        x = activate(self.dense.product(x), self.activation).astype(hidden.dtype)
        return self.out.product(x)[..., 0]


class ClassificationHead(nnx.Module):
    """Classes of a text, or one number, from the state of its [CLS] token.

    dropout -> dense -> activation -> dropout -> dense. The first layer and tanh are BERT's pooler,
    which has no dropout before it (Devlin et al. 2019; transformers' *ForSequenceClassification).

    Args:
      d_model: size of the hidden states.
      num_classes: logits; 1 for regression.
      activation: after the first layer.
      dropout_rate: before the second layer.
      input_dropout_rate: before the first one.
      stddev: of the kernels at the start.
      rngs: the stream "params" is used.
    """

    def __init__(
        self,
        d_model: int,
        num_classes: int,
        *,
        activation: Activation = "tanh",
        dropout_rate: float = 0.1,
        input_dropout_rate: float = 0.0,
        stddev: float = 0.02,
        rngs: nnx.Rngs,
    ):
        self.dense = _dense(
            d_model,
            d_model,
            axes=("embed", "mlp"),
            stddev=stddev,
            rngs=rngs,
        )
        self.out = _dense(
            d_model,
            num_classes,
            axes=("mlp", None),
            stddev=stddev,
            rngs=rngs,
        )
        self.activation: Activation = activation
        self.dropout_rate = dropout_rate
        self.input_dropout_rate = input_dropout_rate

    def __call__(
        self, hidden: Float[Array, "B S D"], *, key: Key | None = None
    ) -> Float[Array, "B C"]:
        """Logits of the classes; a key turns dropout on."""
        in_key, out_key = split_key(key, 2)
        x = dropout(hidden[:, 0], self.input_dropout_rate, key=in_key)
        x = activate(self.dense.product(x), self.activation).astype(hidden.dtype)
        return self.out.product(dropout(x, self.dropout_rate, key=out_key))


class SpanHead(nnx.Module):
    """Where an answer begins and where it ends: two numbers for each position (SQuAD).

    Args:
      d_model: size of the hidden states.
      stddev: of the kernel at the start.
      rngs: the stream "params" is used.
    """

    def __init__(self, d_model: int, *, stddev: float = 0.02, rngs: nnx.Rngs):
        self.out = _dense(
            d_model,
            2,
            axes=("embed", None),
            stddev=stddev,
            rngs=rngs,
        )

    def __call__(
        self, hidden: Float[Array, "B S D"]
    ) -> tuple[Float[Array, "B S"], Float[Array, "B S"]]:
        """Logits of the first and of the last token."""
        logits = self.out.product(hidden)
        return logits[..., 0], logits[..., 1]
