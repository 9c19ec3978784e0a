"""A checkpoint that turns texts into vectors.

    encoder = Checkpoint.load(["work/bert"]).encoder(pooling="mean")
    rows, longer = encoder.rows(["dogs bark"])
    encoder.embedder(batch_size=32).run(encoder.params, rows)       # float32 [1, D]

The checkpoint's head "dense" defines the vectors, unless the caller does. It comes from contrastive
training, from RetroMAE, which trains the state of [CLS], or from an imported sentence-transformers
directory. Without this head, the mean of the states with length 1 is assumed, with a warning.
"""

import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import Any, cast

import jax.numpy as jnp
from jax.sharding import Mesh

from t5x_lite.config import Experiment
from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import Array, Params
from t5x_lite.data.config import text_lengths
from t5x_lite.data.vocabularies.encoder_tokens import Cut, TextRows, encoder_tokens, text_rows
from t5x_lite.data.vocabularies.loading import Vocabulary
from t5x_lite.inference.loading import Loaded
from t5x_lite.inference.vectors import Embedder, HeadEmbedder, room, with_cls
from t5x_lite.models.encoder import EncoderModel
from t5x_lite.models.towers import Pooling, check_pooling
from t5x_lite.models.vector_heads import Dense, check_cls, dense_of
from t5x_lite.objectives.learner import Learner, heads_of
from t5x_lite.objectives.retromae import bag_scores, largest

_BAG_CHUNK = 32
"""Positions of a text that logits are computed for at a time."""

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Vectors:
    """Settings that turn a text into a vector.

    Attributes:
      pooling: pooling of the states.
      normalize: True if it has length 1.
      dimensions: number of leading dimensions that it keeps; None keeps all.
    """

    pooling: Pooling
    normalize: bool
    dimensions: int | None = None

    @classmethod
    def of(
        cls,
        experiment: Experiment,
        *,
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        dimensions: int | None = None,
    ) -> "Vectors":
        """Return the requested settings, completed from the head "dense".

        Raises:
          InputError: if the pooling does not exist, or needs a [CLS] that the model lacks.
        """
        known = dense_head(experiment)
        if known is None and pooling is None and experiment.model.begins_with_cls:
            _logger.warning(
                "the checkpoint does not define how a text's vector is computed; assuming the "
                "mean of its states; otherwise pass --pooling cls"
            )
        head = known or Dense()
        kind = head.pooling if pooling is None else pooling
        check_pooling("pooling", kind)
        check_cls(kind, experiment.model)
        unit = head.normalize if normalize is None else normalize
        return cls(pooling=kind, normalize=unit, dimensions=dimensions)


def dense_head(experiment: Experiment) -> Dense | None:
    """Return a checkpoint's settings for vectors, or None."""
    return dense_of(heads_of(experiment.objective, experiment.heads))


def whole_of(experiment: Experiment, learner: Learner) -> Callable[[Params], Any] | None:
    """Return the binder of a learner if vectors need more than the model, else None."""
    head = dense_head(experiment)
    projects = head is not None and head.projection is not None
    return learner.bind if projects or experiment.objective.more_towers() else None


def rows_of(experiment: Experiment, vocabulary: Vocabulary) -> TextRows:
    """Return the function that makes rows of texts for a model."""
    return text_rows(vocabulary, begins=experiment.model.begins_with_cls)


def most_tokens(experiment: Experiment) -> int | None:
    """Return the maximum tokens of a row, or None for no limit."""
    return experiment.model.longest_document


def trained_length(experiment: Experiment) -> int:
    """Return tokens of the longest rows that the model was trained with, or that its head names."""
    head, data = dense_head(experiment), experiment.data
    longest = max(data.inputs_length, *text_lengths(data).values(), 0)
    if head is not None and head.max_length is not None:
        return min(head.max_length, most_tokens(experiment) or head.max_length)
    return min(longest, most_tokens(experiment) or longest)


def check_encodes(learner: Learner, where: object) -> None:
    """Raise InputError for a model that gives no vectors.

    Raises:
      InputError: it has no encoder.
    """
    if not hasattr(learner.model_type, "encode"):
        raise InputError(f"checkpoint {where}: {learner.model_type.__name__} has no encoder")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextEncoder:
    """A checkpoint's encoder.

    Attributes:
      loaded: the checkpoint.
      vectors: settings of the vectors.
      length: maximum tokens of a text, including the tokens that begin and end a row.
      mesh: mesh with the devices that share the texts; if None, the parameters' devices.
    """

    loaded: Loaded
    vectors: Vectors
    length: int
    mesh: Mesh | None = None

    @classmethod
    def of(
        cls,
        loaded: Loaded,
        *,
        mesh: Mesh | None = None,
        length: int | None = None,
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        dimensions: int | None = None,
    ) -> "TextEncoder":
        """Return the encoder of a checkpoint that has been read.

        Args:
          loaded: the checkpoint.
          mesh: mesh with the devices that share the texts; if None, one device.
          length: maximum tokens of a text; if None, the model's training length.
          pooling: "cls" or "mean"; None is what the checkpoint says.
          normalize: None is what the checkpoint says.
          dimensions: number of leading dimensions that a vector keeps; None keeps all.

        Raises:
          InputError: the checkpoint has no encoder, or cannot do what is asked for.
        """
        check_encodes(loaded.learner, loaded.directory)
        experiment = loaded.experiment
        loaded.check_length(length, what="texts")
        return cls(
            loaded=loaded,
            vectors=Vectors.of(
                experiment, pooling=pooling, normalize=normalize, dimensions=dimensions
            ),
            length=trained_length(experiment) if length is None else length,
            mesh=mesh,
        )

    @property
    def params(self) -> Params:
        """Input of the embedder: the learner's parameters."""
        return self.loaded.params

    def begins_with(self, prefix: str | None, prompt: str | None) -> str:
        """Return the prefix of a text.

        Args:
          prefix: the prefix itself; None uses a prompt of the checkpoint.
          prompt: name of the prompt; None uses the default prompt, if there is one.

        Raises:
          InputError: if both are given, or the prompt does not exist.
        """
        if prefix is not None and prompt is not None:
            raise InputError(
                "prefix and prompt both set the text before each input; set only one of them"
            )
        if prefix is not None:
            return prefix
        head = dense_head(self.loaded.experiment) or Dense()
        names = [each.name for each in head.prompts]
        if prompt is not None and prompt not in names:
            raise InputError(
                f"checkpoint {self.loaded.directory} has no prompt {prompt!r}: it has "
                f"{', '.join(names) or 'none'}; --prefix gives any text"
            )
        return head.prompt(*([] if prompt is None else [prompt]))

    def known_prompt(self, name: str) -> str | None:
        """Return the name of a prompt, if the checkpoint has it."""
        head = dense_head(self.loaded.experiment) or Dense()
        return name if name in [each.name for each in head.prompts] else None

    def rows(self, texts: Sequence[str], *, mcls: int | None = None) -> Cut:
        """Return the tokens of each text, and the numbers of the texts that were cut.

        Args:
          texts: any strings.
          mcls: tokens behind each [CLS] (`inference.vectors`); None has one in a row.
        """
        rows = rows_of(self.loaded.experiment, self.loaded.vocabulary)
        if mcls is None:
            return rows(texts, length=self.length)
        found = rows(texts, length=room(self.length, mcls) + rows.shortest)
        return Cut([with_cls(row, mcls) for row in found.rows], found.longer)

    def head_embedder(self, ways: Sequence[str], *, batch_size: int) -> HeadEmbedder:
        """Return the embedder of several heads in one pass.

        Args:
          ways: names of the heads, such as "dense", "lexical" and "multi_vector".
          batch_size: rows encoded at once.

        Raises:
          InputError: the checkpoint lacks one, or it has two encoders, or no [CLS].
        """
        return head_embedder(
            self.loaded.experiment,
            self.loaded.learner,
            self.loaded.vocabulary,
            ways,
            vectors=self.vectors,
            batch_size=batch_size,
            mesh=self.mesh,
            where=f"checkpoint {self.loaded.directory}",
        )

    def embedder(
        self, *, batch_size: int, lengths: Sequence[int] | None = None, bag_top: int = 0
    ) -> Embedder:
        """Return the embedder of rows into vectors.

        Args:
          batch_size: rows encoded at once.
          lengths: as for `Embedder`.
          bag_top: number of DupMAE's bag-of-words entries after the pooled state; 0 disables the
            bag.

        Raises:
          InputError: a bag is asked for of a checkpoint without a masked language model's head.
        """
        learner = self.loaded.learner
        if bag_top and "mlm" not in learner.heads:
            raise InputError(
                f"checkpoint {self.loaded.directory} has no masked language model head "
                "(mlm), which a bag of words needs; omit --bag-top"
            )

        if bag_top and self.loaded.experiment.objective.more_towers():
            raise InputError(
                f"checkpoint {self.loaded.directory} has two encoders, but a bag of words needs a "
                "single encoder with its head; omit --bag-top"
            )

        def bag(params: Params, states: Array, segment_ids: Array) -> Array:
            bound = learner.bind(params)
            head, model = bound.heads["mlm"], cast(EncoderModel, bound.model)
            read = (segment_ids > 0) & (jnp.arange(states.shape[1]) > 0)
            table = model.tables()["token"]
            of_head = head.transform(states.astype(table.dtype)), table, head.bias[...]
            return largest(bag_scores(*of_head, read=read, chunk=_BAG_CHUNK), bag_top)

        return Embedder(
            self.loaded.learner.bind_model,
            batch_size=batch_size,
            pooling=self.vectors.pooling,
            normalize=self.vectors.normalize,
            pad_id=self.loaded.vocabulary.pad_id,
            max_length=most_tokens(self.loaded.experiment),
            lengths=lengths,
            mesh=self.mesh,
            whole=whole_of(self.loaded.experiment, self.loaded.learner),
            bag=bag if bag_top else None,
            dimensions=self.vectors.dimensions,
        )


def head_embedder(
    experiment: Experiment,
    learner: Learner,
    vocabulary: Vocabulary,
    ways: Sequence[str],
    *,
    vectors: Vectors,
    batch_size: int,
    mesh: Mesh | None,
    where: str,
) -> HeadEmbedder:
    """Return the embedder of several heads in one pass.

    Args:
      experiment: experiment of the learner.
      learner: learner with the heads.
      vocabulary: vocabulary of the model.
      ways: names of the heads.
      vectors: settings of the dense vector.
      batch_size: rows encoded at once.
      mesh: as for `Embedder`.
      where: name of the caller, for messages.

    Raises:
      InputError: if a head or [CLS] is missing, or the checkpoint has two encoders.
    """
    for way in ways:
        if way not in learner.heads:
            raise InputError(
                f"{where}: has no head {way!r}, but {', '.join(learner.heads) or 'none'}: "
                "train it by objective M3, or import a BGE-M3"
            )
    if experiment.objective.more_towers() or not experiment.model.begins_with_cls:
        raise InputError(f"{where}: several heads need one encoder with rows that begin with [CLS]")
    return HeadEmbedder(
        learner.bind,
        ways,
        batch_size=batch_size,
        pooling=vectors.pooling,
        normalize=vectors.normalize,
        cls_id=encoder_tokens(vocabulary).cls_id,
        pad_id=vocabulary.pad_id,
        max_length=most_tokens(experiment),
        mesh=mesh,
        dimensions=vectors.dimensions,
    )
