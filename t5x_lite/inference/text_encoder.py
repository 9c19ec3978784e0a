"""A checkpoint that turns texts into vectors: pooled states, and BGE-M3's three heads.

Vectors of texts: from an encoder's hidden states, and from the three heads of a BGE-M3.

    embedder = Embedder(bind, batch_size=32, pooling="mean", normalize=True)
    embedder.run(params, [tokens, other_tokens])        # float32 [2, D], each of length 1

Texts of similar length are batched together, which reduces padding. Lengths are rounded up to a few
sizes, so that few programs are compiled. Padding is determined by the lengths of the rows and not
by their tokens, because an encoder's padding need not be token 0.

The three heads of a BGE-M3 are computed in one pass of the encoder:

    embedder = HeadEmbedder(learner.bind, ("dense", "lexical"), batch_size=32, ...)
    found = embedder.several(params, [tokens, other_tokens])
    found.dense                 float32 [2, D]
    found.terms                 [{5: 0.7, 9: 0.4}, ...], token -> weight above 0

MCLS of BGE-M3 inserts several [CLS] into a long text, each before a window of tokens; it needs no
training:

    window 3     [CLS] a b c d e f g [SEP]   ->   [CLS] a b c [CLS] d e f [CLS] g [SEP]

The text's vector is the mean of the last hidden states of all [CLS]. The inserted tokens count in
positions and maximum lengths. A text that is not longer than the window is unchanged. Rows with
several [CLS] form their own batches, so they do not change the vectors of other rows in any bit.

Source: Chen et al. 2024, arXiv:2402.03216, section 4; no code was published.

Encoder that turns texts into vectors, from a checkpoint.

    encoder = Checkpoint.load(["work/bert"]).encoder(pooling="mean")
    rows, longer = encoder.rows(["dogs bark"])
    encoder.embedder(batch_size=32).run(encoder.params, rows)       # float32 [1, D]

The checkpoint's head "dense" defines the pooling and normalization, unless the caller does. The
head comes from contrastive training, from RetroMAE, which trains the [CLS] hidden state, or from an
imported sentence-transformers directory. Without the head, a vector is the mean of the hidden
states, scaled to length 1, with a warning.
"""

import collections
import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float, Int

from t5x_lite.config import Experiment
from t5x_lite.core.errors import InputError
from t5x_lite.core.sharding import jit_rows, rounded_rows
from t5x_lite.core.trees import Array, Params
from t5x_lite.data.config import text_lengths
from t5x_lite.data.vocabularies.encoder_tokens import Cut, TextRows, encoder_tokens, text_rows
from t5x_lite.data.vocabularies.loading import Vocabulary
from t5x_lite.inference.generate import Bind, batched, padded_length, with_adapter_ids
from t5x_lite.inference.loading import Loaded
from t5x_lite.models.encoder import EncoderModel
from t5x_lite.models.vector_heads import (
    Dense,
    Pooling,
    Role,
    check_cls,
    check_pooling,
    dense_of,
    pool,
)
from t5x_lite.objectives.learner import Learner, heads_of
from t5x_lite.objectives.retromae import bag_scores, largest

_logger = logging.getLogger(__name__)


_IN_FLIGHT = 4
"""Maximum batches that wait for the device, so that it computes while the host pads."""
_SHORTEST_NORM = 1e-12
"""Minimum divisor when vectors are scaled to length 1, as in PyTorch's `normalize`."""


class Embedder:
    """Encoder of tokenized texts into vectors, in batches of one size and a few padded lengths.

    Attributes:
      vectors: compiled functions (params, tokens [B, S], lengths [B]) -> vectors [B, D], by role.

    Args:
      bind: function that builds a module with the method `encode` from the parameters.
      batch_size: number of rows per batch, rounded up to a multiple of the mesh's devices.
      pooling: "cls" or "mean" (`models.towers`).
      normalize: True to scale vectors to length 1.
      pad_id: id of the model's padding token.
      max_length: maximum number of tokens of a padded row; longer inputs are rejected. None sets no
        limit.
      lengths: ascending lengths in tokens to which rows are padded, if programs for other lengths
        must not be compiled; None rounds lengths up.
      mesh: device mesh that divides the rows; None uses the devices of the parameters.
      whole: function that builds the model with its heads, instead of `bind`; needed if queries and
        passages have separate encoders or projections. None uses `bind`.
      bag: function (parameters, hidden states, padding mask) -> values to append to each vector;
        None appends nothing.
      dimensions: number of leading dimensions to keep of each vector; None keeps all.
    """

    def __init__(
        self,
        bind: Bind,
        *,
        batch_size: int,
        pooling: Pooling = "mean",
        normalize: bool = False,
        pad_id: int = 0,
        max_length: int | None = None,
        lengths: Sequence[int] | None = None,
        mesh: Mesh | None = None,
        whole: Bind | None = None,
        bag: Callable[[Params, Array, Array], Array] | None = None,
        dimensions: int | None = None,
    ):
        check_pooling("pooling", pooling)

        def encode(
            params: Params, tokens: Array, lengths: Array, role: Role
        ) -> tuple[Array, Array]:
            segment_ids = (jnp.arange(tokens.shape[1]) < lengths[:, None]).astype(jnp.int32)
            encoder = bind(params) if whole is None else whole(params).encoder(role)
            hidden = encoder.encode(tokens, segment_ids=segment_ids)
            return hidden.astype(jnp.float32), segment_ids

        def vectors(params: Params, tokens: Array, lengths: Array, role: Role) -> Array:
            states, segment_ids = encode(params, tokens, lengths, role)
            found = pool(states, segment_ids, pooling)
            if whole is not None:
                found = whole(params).heads["dense"].project(found, role=role)
            if bag is not None:
                found = jnp.concatenate([found, bag(params, states, segment_ids)], axis=1)
            found = shortened(found, dimensions)
            return unit_length(found) if normalize else found

        def states(params: Params, tokens: Array, lengths: Array, role: Role) -> Array:
            return encode(params, tokens, lengths, role)[0]

        self._states, self.vectors = (
            {role: jit_rows(functools.partial(each, role=role), mesh) for role in get_args(Role)}
            for each in (states, vectors)
        )
        self._batch_size = rounded_rows(batch_size, mesh)
        self._pad_id, self._max_length, self._lengths = pad_id, max_length, lengths

    def run(
        self,
        params: Params,
        inputs: Sequence[np.ndarray],
        *,
        role: Role = "query",
        adapter_ids: Sequence[int] | None = None,
    ) -> Float[np.ndarray, "n D"]:
        """Return the vector of each input, in order.

        Args:
          params: parameter tree for `bind`.
          inputs: token ids of each text, int32, including the special tokens of a row.
          role: kind of the texts, "query" or "passage", if the model distinguishes them.
          adapter_ids: adapter id of each input; None if all inputs use the same adapters.
        """
        # Without inputs, a row of padding determines D.
        rows = list(inputs) or [np.zeros(0, np.int32)]
        ids = adapter_ids if inputs or adapter_ids is None else [0]
        found: np.ndarray | None = None
        for batch, vectors in self._results(self.vectors[role], params, rows, ids):
            if found is None:
                found = np.empty((len(rows), vectors.shape[1]), np.float32)
            found[batch] = vectors[: len(batch)]
        assert found is not None
        return found[: len(inputs)]

    def states(
        self,
        params: Params,
        inputs: Sequence[np.ndarray],
        *,
        role: Role = "query",
        adapter_ids: Sequence[int] | None = None,
    ) -> list[np.ndarray]:
        """Return the encoder's hidden states of each input, float32 [length, D]."""
        found: dict[int, np.ndarray] = {}
        for batch, states in self._results(self._states[role], params, inputs, adapter_ids):
            found |= {row: v[: len(inputs[row])] for row, v in zip(batch, states, strict=False)}
        return [found[row] for row in range(len(inputs))]

    def _results(
        self,
        function: Callable[..., Any],
        params: Params,
        inputs: Sequence[np.ndarray],
        adapter_ids: Sequence[int] | None = None,
    ) -> Iterator[tuple[list[int], Any]]:
        under_way: collections.deque[tuple[list[int], Any]] = collections.deque()
        # Long ones first: what does not fit the memory is seen at once.
        order = sorted(range(len(inputs)), key=lambda row: -len(inputs[row]))
        for batch in batched(order, self._batch_size):
            tokens, lengths = self._pad([inputs[row] for row in batch])
            own = with_adapter_ids(params, adapter_ids, batch, size=self._batch_size)
            under_way.append((list(batch), function(own, tokens, lengths)))
            if len(under_way) > _IN_FLIGHT:
                done, result = under_way.popleft()
                yield done, jax.tree.map(np.asarray, jax.device_get(result))
        for done, result in under_way:
            yield done, jax.tree.map(np.asarray, jax.device_get(result))

    def _pad(self, rows: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return padded tokens [batch_size, length], and each row's length without padding."""
        longest = max(len(row) for row in rows)
        size = rounded_length(longest)
        if self._lengths is not None:
            size = min(length for length in self._lengths if length >= longest)
        elif self._max_length is not None:
            size = max(longest, min(size, self._max_length))
        tokens = np.full((self._batch_size, size), self._pad_id, np.int32)
        lengths = np.zeros(self._batch_size, np.int32)
        for place, row in enumerate(rows):
            tokens[place, : len(row)] = row
            lengths[place] = len(row)
        return tokens, lengths


def shortened(vectors: Float[Array, "B D"], dimensions: int | None) -> Float[Array, "B E"]:
    """Return the first `dimensions` dimensions of vectors, or the complete vectors for None.

    Raises:
      InputError: if the vectors have fewer dimensions.
    """
    if dimensions is not None and dimensions > vectors.shape[1]:
        raise InputError(
            f"dimensions must be at most {vectors.shape[1]}, the size of a vector, got {dimensions}"
        )
    return vectors[:, :dimensions]


def unit_length(vectors: Float[Array, "B D"]) -> Float[Array, "B D"]:
    """Return the vectors scaled to length 1."""
    norm = jnp.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / jnp.maximum(norm, _SHORTEST_NORM)


def rounded_length(length: int) -> int:
    """Return a length rounded up to 16, 32, 64, 96, 128, 160, 192, 224, 256, 320, 384, ...

    With powers of two, a quarter of all tokens would be padding; with these sizes, a tenth is.
    """
    step = max(32, padded_length(length) // 8)
    return -(-length // step) * step if length > 16 else 16


DENSE, LEXICAL, MULTI_VECTOR = "dense", "lexical", "multi_vector"


class Several(NamedTuple):
    """Outputs of BGE-M3 heads for several texts; an output is None if it was not requested.

    Attributes:
      dense: dense vectors, float32 [n, D].
      terms: lexical weights of each text: token id -> weight, only weights above 0.
      vectors: token vectors of each text, without the [CLS] tokens.
    """

    dense: Float[np.ndarray, "n D"] | None
    terms: list[dict[int, float]] | None
    vectors: list[np.ndarray] | None


class HeadEmbedder(Embedder):
    """Encoder of tokenized texts that returns the outputs of several heads in one pass.

    Args:
      bind: function from a parameter tree to the model's module with its heads.
      ways: names of the heads, such as "dense" and "lexical".
      batch_size: number of rows per batch.
      pooling: pooling of the dense vector.
      normalize: True to scale the dense vector to length 1.
      cls_id: id of the token [CLS].
      **options: options of `Embedder`.
    """

    def __init__(
        self,
        bind: Bind,
        ways: Sequence[str],
        *,
        batch_size: int,
        pooling: Pooling,
        normalize: bool,
        cls_id: int,
        **options: Any,
    ):
        super().__init__(
            bind, batch_size=batch_size, pooling=pooling, normalize=normalize, **options
        )
        self._cls_id = cls_id

        def several(
            params: Params, tokens: Array, lengths: Array, *, mcls: bool
        ) -> dict[str, Array]:
            bound = bind(params)
            segment_ids = (jnp.arange(tokens.shape[1]) < lengths[:, None]).astype(jnp.int32)
            hidden = bound.model.encode(tokens, segment_ids=segment_ids)
            found: dict[str, Array] = {}
            if DENSE in ways:
                summaries = (tokens == cls_id) & (segment_ids > 0)
                states = hidden.astype(jnp.float32)
                pooled = pool(
                    states, summaries if mcls else segment_ids, "mean" if mcls else pooling
                )
                pooled = bound.heads[DENSE].project(pooled)
                pooled = shortened(pooled, options.get("dimensions"))
                found[DENSE] = unit_length(pooled) if normalize else pooled
            if LEXICAL in ways:
                found[LEXICAL] = bound.heads[LEXICAL].terms(hidden, tokens, segment_ids)
            if MULTI_VECTOR in ways:
                found[MULTI_VECTOR] = bound.heads[MULTI_VECTOR](hidden, segment_ids)
            return found

        def of(mcls: bool) -> Callable[..., Any]:
            def run(params: Params, tokens: Array, lengths: Array) -> dict[str, Array]:
                return several(params, tokens, lengths, mcls=mcls)

            return jit_rows(run, options.get("mesh"))

        self._several = {mcls: of(mcls) for mcls in (False, True)}

    def several(
        self, params: Params, inputs: Sequence[np.ndarray], *, mcls: bool = False
    ) -> Several:
        """Return the outputs of the heads for each input, in order.

        Args:
          params: parameter tree for `bind`.
          inputs: token ids of each text, int32, including the special tokens of a row.
          mcls: True if rows may have several [CLS]; their hidden states are then averaged.
        """
        dense: dict[int, np.ndarray] = {}
        terms: dict[int, dict[int, float]] = {}
        vectors: dict[int, np.ndarray] = {}
        has_more = [mcls and int(np.sum(row == self._cls_id)) > 1 for row in inputs]
        for several in (False, True):
            those = [i for i, more in enumerate(has_more) if more == several]
            rows = [inputs[i] for i in those]
            for batch, found in self._results(self._several[several], params, rows):
                for place, number in enumerate(batch):
                    own, row = those[number], rows[number]
                    if DENSE in found:
                        dense[own] = found[DENSE][place]
                    if LEXICAL in found:
                        terms[own] = _above_0(row, found[LEXICAL][place])
                    if MULTI_VECTOR in found:
                        kept = (row[1:] != self._cls_id) | (not several)
                        vectors[own] = found[MULTI_VECTOR][place, : len(row) - 1][kept]
        order = range(len(inputs))
        return Several(
            np.stack([dense[i] for i in order]) if dense else None,
            [terms[i] for i in order] if terms else None,
            [vectors[i] for i in order] if vectors else None,
        )


def _above_0(row: np.ndarray, weights: np.ndarray) -> dict[int, float]:
    """Return the weights above 0 by token id, sorted by descending weight and then by token."""
    there = np.flatnonzero(weights[: len(row)] > 0)
    pairs = [(int(row[place]), float(weights[place])) for place in there]
    return dict(sorted(pairs, key=lambda pair: (-pair[1], pair[0])))


def room(length: int, window: int) -> int:
    """Return the maximum number of text tokens in a row that has a [CLS] before each window.

    Args:
      length: number of tokens of the row, at least 3.
      window: number of tokens after each [CLS].
    """
    whole, rest = divmod(length - 1, window + 1)
    return whole * window + max(0, rest - 1)


def with_cls(row: Int[np.ndarray, " S"], window: int) -> Int[np.ndarray, " T"]:
    """Return a row [CLS] text [SEP] with an additional [CLS] after every `window` text tokens.

    Args:
      row: token ids of the row.
      window: number of tokens after each [CLS].
    """
    text = row[1:-1]
    if len(text) <= window:
        return row
    return np.insert(row, np.arange(1 + window, 1 + len(text), window), row[0])


_BAG_CHUNK = 32
"""Number of positions processed at a time for the logits of DupMAE's bag of words."""


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
        """Return the given settings, with None replaced by the setting of the checkpoint.

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
    """Return the head "dense" of a checkpoint, or None if it is missing."""
    return dense_of(heads_of(experiment.objective, experiment.heads))


def whole_of(experiment: Experiment, learner: Learner) -> Callable[[Params], Any] | None:
    """Return the function that builds a model with its heads; None if vectors need no heads."""
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
    """Return the maximum number of tokens of a text in training."""
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
          prefix: text of the prefix; None uses a prompt of the checkpoint.
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
                f"checkpoint {self.loaded.directory} has no prompt {prompt!r} (its prompts: "
                f"{', '.join(names) or 'none'}); to set the text of a prompt directly, use "
                "--prefix"
            )
        return head.prompt(*([] if prompt is None else [prompt]))

    def known_prompt(self, name: str) -> str | None:
        """Return `name` if the checkpoint has a prompt of this name, otherwise None."""
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
          lengths: lengths in tokens to which rows may be padded; None rounds lengths up.
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
                f"checkpoint {self.loaded.directory} has two encoders, but a bag of words "
                "requires a single encoder with a masked language model head; omit --bag-top"
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
                f"{where}: the model has no head {way!r} (its heads: "
                f"{', '.join(learner.heads) or 'none'}); train the head by the objective M3, or "
                "import a BGE-M3 model"
            )
    if experiment.objective.more_towers() or not experiment.model.begins_with_cls:
        raise InputError(
            f"{where}: several heads require a model with a single encoder and texts that begin "
            "with [CLS]"
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
