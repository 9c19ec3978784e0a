"""Queries with their vectors: texts that a checkpoint encodes, or vectors as they are in a file.

names, vectors = QueryEncoder("work/bert").read("queries.jsonl")      # float32 [Q, D]
names, vectors = QueryEncoder().read("queries.npy")
"""

import dataclasses
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from t5x_lite.errors import InputError
from t5x_lite.option_types import (
    ALL_MODULES,
    Modules,
    OptionalDirectory,
    OptionalPooling,
    OptionalPositive,
    OptionalText,
    Positive,
    Step,
)

if TYPE_CHECKING:
    import numpy as np

_logger = logging.getLogger(__name__)


class Queries(NamedTuple):
    """Queries with their vectors.

    Attributes:
      ids: of each.
      vectors: float32 [Q, D].
    """

    ids: list[str]
    vectors: "np.ndarray"


@dataclasses.dataclass(frozen=True)
class QueryEncoder:
    """A checkpoint that turns queries into vectors; its fields are options of commands.

    Attributes:
      checkpoint: encodes queries that are texts.
      step: the step to take from a work directory, or best; the newest if not given.
      base: where the base of a checkpoint is that holds its trained part alone.
      adapters: the modules in use.
      pooling: the state of [CLS], or the mean of all; if not given, what the checkpoint says.
      normalize: whether vectors have length 1; if not given, what the checkpoint says.
      prefix: what every query begins with; if not given, the checkpoint's prompt.
      prompt: the name of that; query, if the checkpoint has one of that name.
      batch_size: queries encoded at once.
      inputs_length: tokens of a query at most; what the model was trained with if not given.
      trust_project: as for embed.
    """

    checkpoint: OptionalDirectory = None
    step: Step = None
    base: OptionalDirectory = None
    adapters: Modules = ALL_MODULES
    pooling: OptionalPooling = None
    normalize: bool | None = None
    prefix: OptionalText = None
    prompt: OptionalText = None
    batch_size: Positive = 32
    inputs_length: OptionalPositive = None
    trust_project: bool = False

    def named(self) -> str:
        """The checkpoint, where a command needs one.

        Raises:
          InputError: if there is none.
        """
        if self.checkpoint is None:
            raise InputError("give --checkpoint")
        return self.checkpoint

    def read(self, path: str, *, ids: Sequence[str] = ()) -> Queries:
        """Read queries: texts if there is a checkpoint, which encodes them, else vectors.

        Args:
          path: the file.
          ids: files of the passages that vectors in .npy were made of.

        Raises:
          InputError: if the file or the checkpoint is wrong, or no query or one id twice is there.
        """
        from t5x_lite.records.passages import read_passages
        from t5x_lite.records.vector_shards import VectorShards

        if self.checkpoint is None:
            shards = VectorShards.open([path], ids=ids)
            names, vectors = shards.names(0, len(shards)), shards.rows(0, len(shards))
        else:
            passages = list(read_passages(path))
            names = [passage.id for passage in passages]
            vectors = self._encode(self.checkpoint, [passage.whole for passage in passages])
        if not names:
            raise InputError(f"{path}: no query")
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InputError(f"{path}: the id {twice!r} comes twice")
        return Queries(names, vectors)

    def _encode(self, checkpoint: str, texts: Sequence[str]) -> "np.ndarray":
        from t5x_lite.checkpoints.base import base_at
        from t5x_lite.inference.text_encoder import TextEncoder
        from t5x_lite.project import trusting_checkpoints
        from t5x_lite.sharding import MeshConfig, make_mesh

        with trusting_checkpoints(self.trust_project), base_at(self.base):
            encoder = TextEncoder.load(
                checkpoint,
                step=self.step,
                use=self.adapters.use,
                mesh=make_mesh(MeshConfig()),
                length=self.inputs_length,
                pooling=self.pooling,
                normalize=self.normalize,
            )
        prompt = self.prompt
        if prompt is None and self.prefix is None:
            prompt = encoder.known_prompt("query")
        begins = encoder.begins_with(self.prefix, prompt)
        rows, longer = encoder.rows([begins + text for text in texts])
        if longer:
            _logger.warning("%d queries were cut to %d tokens", len(longer), encoder.length)
        return encoder.embedder(batch_size=self.batch_size).run(encoder.params, rows)
