from functools import partial
from types import SimpleNamespace

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.cache.recipe import recipe_of
from t5x_lite.data.config import Data
from t5x_lite.data.denoising import prefix_split, span_corruption
from t5x_lite.data.vocabularies.byte_level import Bytes

DATA = Data(task="a:b", vocabulary="bytes", inputs_length=8, targets_length=6)


def recipe(*after, before=(), features=("inputs", "targets"), bake=False):
    """Of a task with these preprocessors before and behind its placeholder."""
    from t5x_lite.data.elements import seqio, tf

    task = SimpleNamespace(
        preprocessors=[*before, seqio.CacheDatasetPlaceholder(), *after],
        output_features={name: SimpleNamespace(add_eos=True, dtype=tf.int32) for name in features},
    )
    return recipe_of(DATA, Bytes(), task, bake=bake)


def test_a_corruption_and_its_options():
    from t5x_lite.data.elements import seqio
    from t5x_lite.data.tasks import stages

    spans = partial(span_corruption, sentinel_start=258, noise_density=0.5)
    found = recipe(
        stages.count_epochs,
        partial(stages.corrupt, function=spans, seed=7),
        seqio.preprocessors.append_eos_after_trim,
    )
    assert (found.stored, found.eos) == (("tokens",), "after_trim")
    assert found.corruption == "span_corruption"
    assert found.options == {"sentinel_start": 258, "noise_density": 0.5}
    assert found.lengths == {"inputs": 8, "targets": 6}
    plain = recipe(partial(stages.corrupt, function=prefix_split, seed=7))
    assert (plain.corruption, plain.options, plain.eos) == ("prefix_split", {}, "none")


def test_tokens_of_whole_texts_fit_any_lengths():
    from t5x_lite.data.elements import seqio

    eos, tokenize = seqio.preprocessors.append_eos, seqio.preprocessors.tokenize
    found = recipe(eos, before=[tokenize], features=("targets",))
    assert (found.stored, found.eos, found.lengths) == (("targets",), "before_trim", None)
    mapped = recipe(eos, before=[tokenize, lambda dataset: dataset], features=("targets",))
    assert mapped.lengths == {"targets": 6}


def test_a_baked_cache_asks_for_nothing():
    found = recipe(lambda dataset: dataset, bake=True)
    assert (found.stored, found.corruption, found.eos) == (("inputs", "targets"), "", "none")
    assert found.outputs == {"inputs": False, "targets": False}


def test_a_corruption_that_no_cache_knows_is_refused():
    from t5x_lite.data.elements import seqio
    from t5x_lite.data.tasks import stages

    def span_corruption(tokens, *, seed, epoch, index):
        del seed, epoch, index
        return {"inputs": tokens, "targets": tokens}

    with pytest.raises(InputError, match="uses the corruption span_corruption after its"):
        recipe(partial(stages.corrupt, function=span_corruption, seed=0))
    late = partial(stages.corrupt, function=prefix_split, seed=0)
    with pytest.raises(InputError, match="uses corrupt after its"):
        recipe(seqio.preprocessors.append_eos, late)
