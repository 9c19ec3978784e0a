"""What answers the tasks of a config: a search, the rank of a task's labels, or a head.

answerers = Answerers(experiment, vocabulary, bind=bind, mesh=mesh)
answerers.of(task, settings)        # a Generator; tasks with equal settings share one
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.sharding import Mesh

from t5x_lite.bound import heads_of
from t5x_lite.config import Evaluation, Experiment
from t5x_lite.data.tasks.labelled import task_form
from t5x_lite.decoding.config import Decoding
from t5x_lite.errors import InputError
from t5x_lite.evaluate.generate import Bind, Generator
from t5x_lite.evaluate.heads import check_head, head_answers, is_in_order
from t5x_lite.evaluate.rank import LabelGenerator, Ranker
from t5x_lite.evaluate.score import Scorer
from t5x_lite.heads.base import Head
from t5x_lite.heads.classes import with_labels
from t5x_lite.inference.loading import position_bytes
from t5x_lite.vocabulary.encoder_tokens import encoder_tokens
from t5x_lite.vocabulary.loading import Vocabulary


class Answerers:
    """Makes what answers a task, once for all tasks that are answered alike.

    Args:
      experiment: its data, its heads and its objective.
      vocabulary: of the data.
      bind: the model that answers.
      mesh: where batches go.
      learner: the model with its heads; None where there are none.
    """

    def __init__(
        self,
        experiment: Experiment,
        vocabulary: Vocabulary,
        *,
        bind: Bind,
        mesh: Mesh,
        learner: Bind | None = None,
    ):
        self._data = experiment.data
        self._position_bytes = position_bytes(experiment.model, dtype=experiment.compute_dtype)
        self._heads = heads_of(experiment.objective, experiment.heads)
        self._vocabulary = vocabulary
        self._bind, self._mesh, self._learner = bind, mesh, learner
        self._searches: dict[tuple[Decoding, int], Generator] = {}
        self._rankers: dict[int, Ranker] = {}

    @property
    def reads_labels(self) -> bool:
        """Whether a head on an encoder answers, and no text is written."""
        return self._data.layout.answered_by_head

    def of(self, task: Any, settings: Evaluation) -> Generator:
        """What answers a task's examples.

        Args:
          task: the seqio.Task.
          settings: those of the task.

        Raises:
          InputError: a head is to answer, and there is none.
        """
        from t5x_lite.data.live import tasks as live_tasks

        size = settings.batch_size or self._data.batch_size
        if self.reads_labels:
            return self._head(task, settings, batch_size=size)
        labels = live_tasks.task_labels(task) if settings.rank else None
        if labels is None:
            return self._search(decoding(settings), batch_size=size)
        tokens = [
            np.asarray([*ids, self._vocabulary.eos_id], np.int32)
            for ids in self._vocabulary.encode_batch(labels)
        ]
        return LabelGenerator(self._ranker(batch_size=size), labels, tokens)

    def check_head(self, task: Any) -> str:
        """The name of the head that answers a task.

        Raises:
          InputError: there is none.
        """
        from t5x_lite.data.live import tasks as live_tasks

        form = task_form(task)
        return check_head(
            self._heads,
            None if form is None else form.head,
            live_tasks.task_labels(task),
            where=self._where,
            task=task.name,
        )

    def named_heads(self, heads: Sequence[Head], task: Any) -> tuple[Head, ...]:
        """Heads, of which the one that answers a task has the names of its classes.

        Raises:
          InputError: see `heads.classes.with_labels`.
        """
        from t5x_lite.data.live import tasks as live_tasks

        labels = live_tasks.task_labels(task)
        own = self._heads[self.check_head(task)]
        return tuple(heads) if labels is None else with_labels(heads, own, labels)

    def in_order(self, task: Any) -> bool:
        """Whether the head that answers a task has its classes in the order of the labels."""
        from t5x_lite.data.live import tasks as live_tasks

        return is_in_order(self._heads[self.check_head(task)], live_tasks.task_labels(task))

    def _head(self, task: Any, settings: Evaluation, *, batch_size: int) -> Generator:
        from t5x_lite.data.live import tasks as live_tasks

        if self._learner is None:
            raise InputError(
                f"{self._where}: an ensemble has no head in common; give one --checkpoint"
            )
        tokens, form = encoder_tokens(self._vocabulary), task_form(task)
        nulls = form is not None and form.nulls
        return head_answers(
            self._learner,
            self._heads[self.check_head(task)],
            live_tasks.task_labels(task),
            where=self._where,
            layout=self._data.layout,
            null_threshold=settings.null_threshold if nulls else None,
            candidates=form is not None and bool(form.candidates),
            batch_size=batch_size,
            longest=self._data.inputs_length,
            pad_id=tokens.pad_id,
            sep_id=tokens.sep_id,
            mesh=self._mesh,
        )

    def _search(self, how: Decoding, *, batch_size: int) -> Generator:
        key = how, batch_size
        if key not in self._searches:
            self._searches[key] = Generator(
                self._bind,
                self._vocabulary,
                batch_size=batch_size,
                decoding=how,
                mesh=self._mesh,
                position_bytes=self._position_bytes,
            )
        return self._searches[key]

    def _ranker(self, *, batch_size: int) -> Ranker:
        if batch_size not in self._rankers:
            scorer = Scorer(self._bind, batch_size=batch_size, mesh=self._mesh)
            self._rankers[batch_size] = Ranker(scorer)
        return self._rankers[batch_size]

    @property
    def _where(self) -> str:
        return f"data.task {self._data.task!r}"


def decoding(settings: Evaluation) -> Decoding:
    """How an evaluation decodes."""
    return Decoding(
        max_decode_length=settings.max_decode_length,
        num_beams=settings.num_beams,
        length_penalty=settings.length_penalty,
    )
