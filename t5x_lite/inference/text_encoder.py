"""Encoder that turns texts into vectors, from a checkpoint.

    encoder = Checkpoint.load(["work/bert"]).encoder(pooling="mean")
    rows, longer = encoder.rows(["dogs bark"])
    encoder.embedder(batch_size=32).run(encoder.params, rows)       # float32 [1, D]

The checkpoint's head "dense" defines the pooling and normalization, unless the caller does. The
head comes from contrastive training, from RetroMAE, which trains the [CLS] hidden state, or from an
imported sentence-transformers directory. Without the head, a vector is the mean of the hidden
states, scaled to length 1, with a warning.
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
"""Number of positions processed at a time for the logits of DupMAE's bag of words."""

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Vectors:
    """Settings for computing the vector of a text.

    Attributes:
      pooling: pooling of the hidden states, "cls" or "mean".
      normalize: True to scale vectors to length 1.
      dimensions: number of leading dimensions to keep of each vector; None keeps all.
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
        """Return the requested settings; a setting of None is taken from the head "dense".

        Raises:
          InputError: if the pooling is unknown, or needs a [CLS] token that the model lacks.
        """
        known = dense_head(experiment)
        if known is None and pooling is None and experiment.model.begins_with_cls:
            _logger.warning(
                "the checkpoint does not define the pooling of hidden states into a vector; "
                "using the mean of the hidden states; for the [CLS] hidden state, pass "
                "--pooling cls"
            )
        head = known or Dense()
        kind = head.pooling if pooling is None else pooling
        check_pooling("pooling", kind)
        check_cls(kind, experiment.model)
        unit = head.normalize if normalize is None else normalize
        return cls(pooling=kind, normalize=unit, dimensions=dimensions)


def dense_head(experiment: Experiment) -> Dense | None:
    """Return the head "dense" of a checkpoint, which defines its vectors, or None without one."""
    return dense_of(heads_of(experiment.objective, experiment.heads))


def whole_of(experiment: Experiment, learner: Learner) -> Callable[[Params], Any] | None:
    """Return the function that builds model and heads, or None if vectors need only the model."""
    head = dense_head(experiment)
    projects = head is not None and head.projection is not None
    return learner.bind if projects or experiment.objective.more_towers() else None


def rows_of(experiment: Experiment, vocabulary: Vocabulary) -> TextRows:
    """Return the function that converts texts to rows of tokens for a model."""
    return text_rows(vocabulary, begins=experiment.model.begins_with_cls)


def most_tokens(experiment: Experiment) -> int | None:
    """Return the maximum number of tokens of a row, or None for no limit."""
    return experiment.model.longest_document


def trained_length(experiment: Experiment) -> int:
    """Return the maximum text length in tokens: of the head "dense", or else as in training."""
    head, data = dense_head(experiment), experiment.data
    longest = max(data.inputs_length, *text_lengths(data).values(), 0)
    if head is not None and head.max_length is not None:
        return min(head.max_length, most_tokens(experiment) or head.max_length)
    return min(longest, most_tokens(experiment) or longest)


def check_encodes(learner: Learner, where: object) -> None:
    """Raise InputError if the model has no encoder."""
    if not hasattr(learner.model_type, "encode"):
        raise InputError(f"checkpoint {where}: {learner.model_type.__name__} has no encoder")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextEncoder:
    """Encoder of a checkpoint that turns texts into vectors.

    Attributes:
      loaded: the loaded checkpoint.
      vectors: settings of the vectors.
      length: maximum number of tokens of a text, including the special tokens of a row.
      mesh: device mesh that divides the texts; None uses the devices of the parameters.
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
        """Return the encoder of a loaded checkpoint.

        Args:
          loaded: the loaded checkpoint.
          mesh: device mesh that divides the texts; None uses one device.
          length: maximum number of tokens of a text; None uses the length in training.
          pooling: "cls" or "mean"; None uses the checkpoint's setting.
          normalize: True to scale vectors to length 1; None uses the checkpoint's setting.
          dimensions: number of leading dimensions to keep of each vector; None keeps all.

        Raises:
          InputError: if the checkpoint has no encoder, or does not support a setting.
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
        return self.loaded.params

    def begins_with(self, prefix: str | None, prompt: str | None) -> str:
        """Return the prefix to put before each input text.

        Args:
          prefix: the text itself; None uses a prompt of the checkpoint.
          prompt: name of a prompt of the checkpoint; None uses the default prompt, if any.

        Raises:
          InputError: if both are given, or the prompt does not exist.
        """
        if prefix is not None and prompt is not None:
            raise InputError(
                "--prefix and --prompt both set the text before each input; give only one of them"
            )
        if prefix is not None:
            return prefix
        head = dense_head(self.loaded.experiment) or Dense()
        names = [each.name for each in head.prompts]
        if prompt is not None and prompt not in names:
            raise InputError(
                f"checkpoint {self.loaded.directory} has no prompt {prompt!r}, its prompts are "
                f"{', '.join(names) or 'none'}; to set the text itself, use --prefix"
            )
        return head.prompt(*([] if prompt is None else [prompt]))

    def known_prompt(self, name: str) -> str | None:
        """Return `name` if the checkpoint has a prompt of this name, else None."""
        head = dense_head(self.loaded.experiment) or Dense()
        return name if name in [each.name for each in head.prompts] else None

    def rows(self, texts: Sequence[str], *, mcls: int | None = None) -> Cut:
        """Return the token ids of each text, and the indices of truncated texts.

        Args:
          texts: texts to tokenize.
          mcls: number of tokens after each [CLS] token; None inserts one [CLS] per text.
        """
        rows = rows_of(self.loaded.experiment, self.loaded.vocabulary)
        if mcls is None:
            return rows(texts, length=self.length)
        found = rows(texts, length=room(self.length, mcls) + rows.shortest)
        return Cut([with_cls(row, mcls) for row in found.rows], found.longer)

    def head_embedder(self, ways: Sequence[str], *, batch_size: int) -> HeadEmbedder:
        """Return the embedder that computes several heads' outputs in one pass of the encoder.

        Args:
          ways: names of the heads, such as "dense", "lexical" and "multi_vector".
          batch_size: number of rows per batch.

        Raises:
          InputError: if a head or [CLS] is missing, or the checkpoint has two encoders.
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
        """Return the embedder that turns rows of tokens into vectors.

        Args:
          batch_size: number of rows per batch.
          lengths: lengths in tokens to which rows may be padded, as in `Embedder`.
          bag_top: number of entries to keep of DupMAE's bag of words; 0 omits the bag.

        Raises:
          InputError: if a bag of words is requested without a masked language model head.
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
    """Return the embedder that computes several heads' outputs in one pass of the encoder.

    Args:
      experiment: config of the checkpoint.
      learner: learner (model and heads) of the checkpoint.
      vocabulary: vocabulary of the model.
      ways: names of the heads.
      vectors: settings of the dense vector.
      batch_size: number of rows per batch.
      mesh: device mesh that divides the rows; None uses the devices of the parameters.
      where: name of the checkpoint, for messages.

    Raises:
      InputError: if a head or [CLS] is missing, or the checkpoint has two encoders.
    """
    for way in ways:
        if way not in learner.heads:
            raise InputError(
                f"{where} has no head {way!r}, its heads are "
                f"{', '.join(learner.heads) or 'none'}; train the head by the objective M3, or "
                "import a BGE-M3"
            )
    if experiment.objective.more_towers() or not experiment.model.begins_with_cls:
        raise InputError(
            f"{where} cannot run several heads, which needs a single encoder with rows that "
            "begin with [CLS]"
        )
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
