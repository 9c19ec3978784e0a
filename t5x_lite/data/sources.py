"""Where batches come from: offline caches, or tasks that are read on the fly.

    source = batch_source(data)
    source.train_batches(data, vocabulary, seed=0)
    source.eval_batches(data, vocabulary, split="validation")
    source.epoch_of(data, vocabulary, seed=0)           # Epoch(examples=67_349, batches=2104.7)

TensorFlow is imported only where a task is run.
"""

from types import ModuleType

from t5x_lite.data.config import Data
from t5x_lite.data.mixtures import find_mixture


def batch_source(data: Data) -> ModuleType:
    """The module with the `train_batches`, `eval_batches` and `epoch_of` of a data config."""
    if data.cache:
        from t5x_lite.data.cache import batches as cached

        return cached
    from t5x_lite.data.live import pipeline  # before the task's module, which needs TensorFlow too

    find_mixture(data)
    return pipeline
