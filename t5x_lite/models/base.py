"""What every architecture's config has in common."""

import dataclasses
from typing import Any

from flax import nnx


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Base of the architectures' configs.

    Attributes:
      vocab_size: rows of the embedding, the vocabulary's size rounded up.
    """

    vocab_size: int

    def build(self, *, rngs: nnx.Rngs) -> nnx.Module:
        """Makes the module with fresh parameters from the stream "params"."""
        raise TypeError(f"{type(self).__name__} does not define build")

    def replace(self, **changes: Any) -> Any:
        """A copy with other field values."""
        return dataclasses.replace(self, **changes)
