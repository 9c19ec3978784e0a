"""A checkpoint that says how well a passage answers a query.

    scorer = CrossEncoder.load("work/ranker")
    scorer.scores([("who wrote Emma", "Jane Austen wrote ..."), ...])      # float32, raw logits

Its head "classifier" has one class: that of objective Ranker, or of an imported
*ForSequenceClassification with one label. Of a text that is too long the passage is cut.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float

from t5x_lite.data.layouts.ranked import joined
from t5x_lite.errors import InputError
from t5x_lite.evaluate.pair_scores import PairScores
from t5x_lite.run.best_step import Step
from t5x_lite.run.loading import Loaded
from t5x_lite.run.modules import load_using
from t5x_lite.vocabulary.encoder_tokens import EncoderTokens, encoder_tokens, without_special

_HEAD = "classifier"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CrossEncoder:
    """A checkpoint's model and head, ready for use.

    Attributes:
      loaded: the checkpoint.
      scorer: gives the logits of rows.
      tokens: the vocabulary's special ids.
      length: tokens of a row at most.
      query_length: tokens of a query at most, [CLS] and [SEP] included.
    """

    loaded: Loaded
    scorer: PairScores
    tokens: EncoderTokens
    length: int
    query_length: int

    @classmethod
    def load(
        cls,
        checkpoint: str,
        *,
        step: Step = None,
        use: str | None = None,
        batch_size: int = 32,
        length: int | None = None,
        query_length: int | None = None,
        mesh: Mesh | None = None,
    ) -> "CrossEncoder":
        """Reads a checkpoint.

        Args:
          checkpoint: a work directory or a step directory.
          step: of a work directory: its number, "best", or None for the newest.
          use: as for `load_using`.
          batch_size: pairs at once.
          length: tokens of query and passage together; None is what the model was trained with.
          query_length: tokens of a query at most; None is as it was trained, or else half of a row.
          mesh: whose devices share the pairs; None is one device.

        Raises:
          InputError: the checkpoint is damaged or has no head of one class, or a length does not
            fit.
        """
        loaded = load_using(checkpoint, step=step, use=use, mesh=mesh)
        return cls.of(
            loaded, batch_size=batch_size, length=length, query_length=query_length, mesh=mesh
        )

    @classmethod
    def of(
        cls,
        loaded: Loaded,
        *,
        batch_size: int = 32,
        length: int | None = None,
        query_length: int | None = None,
        mesh: Mesh | None = None,
    ) -> "CrossEncoder":
        """That of a checkpoint which is read; see `load`."""
        if not scores_texts(loaded):
            raise InputError(
                f"checkpoint {loaded.directory}: has no head {_HEAD!r} of one class, which scores "
                "a query with a passage: train one by objective Ranker"
            )
        length, query_length = _lengths(loaded, length, query_length)
        tokens = encoder_tokens(loaded.vocabulary)
        scorer = PairScores(
            loaded.learner.bind,
            head=_HEAD,
            batch_size=batch_size,
            longest=length,
            pad_id=loaded.vocabulary.pad_id,
            sep_id=tokens.sep_id,
            mesh=mesh,
        )
        return cls(
            loaded=loaded,
            scorer=scorer,
            tokens=tokens,
            length=length,
            query_length=query_length,
        )

    def scores(self, pairs: Sequence[tuple[str, str]]) -> Float[np.ndarray, " n"]:
        """The raw logit of each (query, passage).

        Raises:
          InputError: a score is not finite.
        """
        found = self.scorer.of(self.loaded.params, self.rows(pairs))
        if not np.all(np.isfinite(found)):
            raise InputError(
                f"checkpoint {self.loaded.directory}: a score is not finite: its weights are "
                "broken, or the compute dtype is too narrow for them"
            )
        return found

    def rows(self, pairs: Sequence[tuple[str, str]]) -> list[np.ndarray]:
        """The tokens of each (query, passage): [CLS] query [SEP] passage [SEP]."""
        return [row for row, _ in self.rows_and_cuts(pairs)]

    def rows_and_cuts(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[np.ndarray, bool]]:
        """The tokens of each (query, passage), and whether one of its texts was cut."""
        texts = list(dict.fromkeys(text for pair in pairs for text in pair))
        encoded = self.loaded.vocabulary.encode_batch(texts)
        ids = {
            text: without_special(found, self.tokens)
            for text, found in zip(texts, encoded, strict=True)
        }
        return [self._row(ids[query], ids[passage]) for query, passage in pairs]

    def _row(self, query: Sequence[int], passage: Sequence[int]) -> tuple[np.ndarray, bool]:
        row = joined(
            self._cut(query, self.query_length),
            self._cut(passage, self.length),
            size=self.length,
            separators=self.tokens.separators,
        )
        whole = len(query) + len(passage) + 2 + self.tokens.separators
        return row, len(row) < whole

    def _cut(self, ids: Sequence[int], length: int) -> np.ndarray:
        return np.array([self.tokens.cls_id, *ids[: length - 2], self.tokens.sep_id], np.int32)


def scores_texts(loaded: Loaded) -> bool:
    """Whether a checkpoint has the head of one class that scores a query with a passage."""
    head = loaded.learner.heads.get(_HEAD)
    return head is not None and head.scores_texts


def _lengths(loaded: Loaded, length: int | None, query_length: int | None) -> tuple[int, int]:
    """Tokens of a row and of a query: asked for, or trained with.

    Raises:
      InputError: the model cannot read so many, or a query leaves no room for a passage.
    """
    experiment = loaded.experiment
    most, data = experiment.model.longest_document, experiment.data
    trained = {"inputs": data.inputs_length, "targets": data.targets_length}
    own, own_query = data.layout.pair_lengths(**trained)
    if length is None:
        length = own if most is None else min(own, most)
    if most is not None and length > most:
        raise InputError(
            f"checkpoint {loaded.directory}: the model reads {most} tokens at most, and rows of "
            f"{length} are asked for (inputs_length)"
        )
    if query_length is None:
        query_length = min(length // 2 if own_query is None else own_query, length - 4)
    if not 3 <= query_length <= length - 4:
        raise InputError(
            f"rows of {length} tokens and queries of {query_length} leave no room for a text and "
            "the tokens between: change inputs_length or query_length"
        )
    return length, query_length


def sigmoid_or_raw(*, sigmoid: bool) -> Callable[[np.ndarray], np.ndarray]:
    """What is written of logits: 1 / (1 + e^-x), or they themselves."""
    return (lambda x: 1.0 / (1.0 + np.exp(-np.float64(x)))) if sigmoid else (lambda x: x)
