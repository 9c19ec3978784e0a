"""`t5x-lite fisher`: how much each weight of a tuned model matters, for `compose 'fisher(a, b)'`.

work/rte_fisher/params/fisher/model/...       the diagonal, float32, of each array of the model
work/rte_fisher/files/fisher.json             the checkpoint, the number of examples, the labels
"""

import dataclasses
import itertools
import json
import logging
from pathlib import Path
from typing import Literal

from t5x_lite import trees
from t5x_lite.checkpoints import manifest, orbax_params
from t5x_lite.data.shapes import Fixed
from t5x_lite.data.sources import batch_source
from t5x_lite.deltas.delta import Delta
from t5x_lite.errors import InputError
from t5x_lite.evaluate.fisher import fisher_diagonal
from t5x_lite.interop.directories import new_directory
from t5x_lite.learner import Learner
from t5x_lite.progress import counting
from t5x_lite.run.best_step import Step
from t5x_lite.run.delta_files import plain
from t5x_lite.run.loading import Loaded, learner_of
from t5x_lite.trees import LazyArray
from t5x_lite.types import Params

Labels = Literal["empirical", "expected"]

_logger = logging.getLogger(__name__)


def fisher(
    checkpoint: str,
    destination: str | Path,
    *,
    examples: int = 1024,
    labels: Labels = "empirical",
    step: Step = None,
) -> None:
    """Writes the diagonal of a checkpoint's Fisher matrix on its own training data.

    Adapters are merged into the kernels first, where kernels can hold them.

    Args:
      checkpoint: a work directory or a step directory.
      destination: a new directory.
      examples: n; drawn as training draws them, with the run's seed.
      labels: "empirical", those of the data, or "expected", all classes of a classifier, each by
        its probability.
      step: of a work directory: its number, "best", or None for the newest.

    Raises:
      InputError: there is no such checkpoint, its data are not there, or expected labels are asked
        for where there is no classifier; or the destination exists.
    """
    with new_directory(destination) as directory:
        loaded = Loaded.from_checkpoint(checkpoint, step=step)
        learner, params = merged_learner(loaded)
        classes = classes_of(learner) if labels == "expected" else None
        data = dataclasses.replace(
            loaded.experiment.data, batch_size=1, pack=False, batches=Fixed()
        )
        batches = batch_source(data).train_batches(
            data, loaded.vocabulary, seed=loaded.experiment.seed
        )
        rows = itertools.islice(batches, examples)
        with counting("measuring", unit="examples", total=examples, steps=True):
            found = fisher_diagonal(learner.loss, params, rows, classes=classes)
        arrays = {
            f"fisher/{path}": LazyArray(x.shape, x.dtype, lambda x=x: x)
            for path, x in found.items()
        }
        orbax_params.write_params(directory / "params", arrays)
        said = {"checkpoint": str(loaded.directory), "examples": examples, "labels": labels}
        (directory / "files").mkdir()
        (directory / "files" / "fisher.json").write_text(json.dumps(said, indent=1))
        manifest.write(directory)
    _logger.info("%s: %s diagonal of %d examples", destination, labels, examples)


def merged_learner(loaded: Loaded) -> tuple[Learner, Params]:
    """A checkpoint's learner and parameters, with adapters merged where kernels can hold them."""
    params = dict(loaded.params)
    if not loaded.learner.adapters:
        return loaded.learner, params
    parts, rest = loaded.learner.delta_form(params.get("adapters", {}))
    names = {adapter.name for adapter in rest}
    modules = {name: x for name, x in params.pop("adapters", {}).items() if name in names}
    merged = Delta(parts).apply(params)
    learner = learner_of(plain(loaded.experiment, rest))
    return learner, {**trees.overlaid(params, merged), **({"adapters": modules} if modules else {})}


def classes_of(learner: Learner) -> int:
    """How many classes a classifier has.

    Raises:
      InputError: it is none.
    """
    head = learner.heads.get("classifier")
    classes = 0 if head is None else vars(head).get("num_classes", 0)
    if classes < 2:
        raise InputError(
            "labels expected are those of a classifier with classes, which this checkpoint is not: "
            "use --labels empirical"
        )
    return classes
