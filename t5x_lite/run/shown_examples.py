"""The few-shot prompts of the tasks of a config (`evaluate.few_shot`), by the task's name.

shown = ShownExamples(experiment, vocabulary)
shown.prompts("glue_rte", data)         # Prompts, which draw from glue_rte's training split
"""

from t5x_lite.config import Experiment
from t5x_lite.data.config import Data
from t5x_lite.errors import InputError
from t5x_lite.evaluate.few_shot import Prompts
from t5x_lite.vocabulary.loading import Vocabulary


class ShownExamples:
    """Reads the examples that prompts show, once for each task.

    Attributes:
      is_on: whether questions are asked by prompts.

    Args:
      experiment: its data and evaluation.few_shot.
      vocabulary: of the data.

    Raises:
      InputError: the layout does not show inputs and targets as text.
    """

    def __init__(self, experiment: Experiment, vocabulary: Vocabulary):
        self._config = experiment.evaluation.few_shot
        self.is_on = self._config.is_on
        self._vocabulary = vocabulary
        self._layout = layout = experiment.data.layout
        self._made: dict[str, Prompts] = {}
        if self.is_on and not {"inputs", "targets"} <= {*layout.features}:
            answers = "a head answers" if layout.answered_by_head else "there are no questions"
            raise InputError(
                f"evaluation.few_shot: with data.layout {layout.name} {answers}, and no text shows "
                "examples: set --evaluation.few-shot.examples 0, or measure a text-to-text model"
            )

    def prompts(self, name: str, data: Data) -> Prompts:
        """The prompts of a task.

        Args:
          name: the task's, for the draw.
          data: the config of the task whose examples are shown, with the length of the prompts.

        Raises:
          InputError: that has no such split, its file is missing or wrong, or no answer is known.
        """
        if name not in self._made:
            self._made[name] = Prompts(
                self._config,
                self._pool(data),
                task=name,
                vocabulary=self._vocabulary,
                length=data.inputs_length,
                ending=self._layout.ending(self._vocabulary, length=data.inputs_length),
            )
        return self._made[name]

    def _pool(self, data: Data) -> list:
        from t5x_lite.data.live.demonstrations import demonstrations

        if not self._config.examples:
            return []
        try:
            return demonstrations(
                data, self._vocabulary, split=self._config.split, pool=self._config.pool
            )
        except InputError as error:
            raise InputError(f"evaluation.few_shot: {error}") from error
