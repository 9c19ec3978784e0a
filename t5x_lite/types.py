"""Words that the whole package shares: the dimension key and array aliases.

Dimension key, used in jaxtyping annotations and in einsum strings alike:

    B batch          T query length   S key length    D d_model
    H heads          K d_kv           F d_ff          V vocabulary
    N layers         J heads * d_kv   R rank          C classes     P prefix

Batch keys are seqio's: encoder_input_tokens, decoder_input_tokens, decoder_target_tokens,
decoder_loss_weights, and with packing *_segment_ids and *_positions.
"""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import jax

Array: TypeAlias = jax.Array
Key: TypeAlias = jax.Array
"""A typed key, `jax.random.key(seed)`; None in a call means deterministic."""

Params: TypeAlias = Mapping[str, Any]
"""A nested dict of arrays; its paths, joined by "/", are public names."""

Axes: TypeAlias = Mapping[str, Any]
"""A nested dict of the same structure whose leaves are tuples of logical axis names."""

ComputeDtype = Literal["float32", "bfloat16"]
"""Of activations; what is summed is float32."""

Batch: TypeAlias = Mapping[str, Any]
"""One batch: seqio's feature names to arrays [B, length]."""
