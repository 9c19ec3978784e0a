"""Where a run begins: what is saved with a step, and where the position in the data is."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.checkpoint_saving import Checkpoints
from t5x_lite.data.vocabulary import load_vocabulary
from t5x_lite.errors import InputError
from t5x_lite.models.bert import BertConfig
from t5x_lite.objectives.electra import Electra
from t5x_lite.objectives.masked_lm import MaskedLM
from t5x_lite.run import restoring
from t5x_lite.run.parts import Parts
from t5x_lite.run.workdir import WorkDirectory
from t5x_lite.train.state import TrainState


@pytest.fixture
def state():
    return TrainState(jnp.int32(7), {"model": {"w": jnp.arange(3.0)}}, {"mean": jnp.ones(2)})


@pytest.fixture
def save(tmp_path, tiny_experiment, state):
    """Saves a state as `fit` does; gives what the step's data/ holds."""

    def run(experiment):
        vocabulary = load_vocabulary(experiment.data.vocabulary)
        with Checkpoints(tmp_path) as checkpoints, WorkDirectory.open(str(tmp_path)) as workdir:
            restoring.saver(checkpoints, experiment, vocabulary, workdir)(state, b"here", None)
        data = tmp_path / "checkpoints" / "7" / "files" / "data"
        return {path.name: path.read_bytes() for path in data.iterdir()}

    return run


class Batches:
    """Remembers where it was sent."""

    position = None

    def restore(self, position):
        self.position = position


def from_cache(experiment):
    return dataclasses.replace(experiment, data=dataclasses.replace(experiment.data, cache="c"))


def resume(tmp_path, experiment, state):
    wanted = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
    )
    batches = Batches()
    with Checkpoints(tmp_path) as checkpoints:
        return restoring.resume(checkpoints, experiment, wanted, batches), batches.position


def test_a_state_comes_back_with_its_position(save, tmp_path, tiny_experiment, state):
    assert resume(tmp_path, tiny_experiment, state) == (None, None)
    assert save(tiny_experiment) == {"process_0": b"here"}
    got, position = resume(tmp_path, tiny_experiment, state)
    assert position == b"here"
    jax.tree.map(np.testing.assert_array_equal, got, state)


def test_the_position_in_a_cache_is_that_of_all_processes(
    save, tmp_path, tiny_experiment, state, monkeypatch
):
    experiment = from_cache(tiny_experiment)
    assert save(experiment) == {"position": b"here"}
    assert resume(tmp_path, experiment, state)[1] == b"here"


def test_the_position_of_another_kind_is_refused(save, tmp_path, tiny_experiment, state):
    save(tiny_experiment)
    with pytest.raises(InputError, match=r"files/data/position is missing"):
        resume(tmp_path, from_cache(tiny_experiment), state)


def test_leaves_in_place_of_others():
    state = TrainState(0, {"a": {"b": 1, "c": 2}, "d": 3, "e": {}}, None)
    got = restoring.with_initial(state, {"a": {"c": 20}, "e": {}})
    assert got.params == {"a": {"b": 1, "c": 20}, "d": 3, "e": {}}


def test_tables_that_are_stored_as_differences_are_added_up_for_another_objective(
    tmp_path, tiny_experiment
):
    model = BertConfig(
        vocab_size=400, d_model=8, d_ff=8, num_heads=1, num_layers=1, max_positions=16
    )
    pretrained = dataclasses.replace(
        tiny_experiment,
        model=model,
        objective=Electra(generator=model, sharing="gdes"),
        data=dataclasses.replace(tiny_experiment.data, layout="encoder"),
    )
    vocabulary = load_vocabulary(pretrained.data.vocabulary)
    params = jax.tree.map(lambda leaf: jnp.full(leaf.shape, 0.5), Parts.of(pretrained).shapes)
    state = TrainState(jnp.int32(7), params, {"mean": jnp.ones(2)})
    with Checkpoints(tmp_path) as checkpoints, WorkDirectory.open(str(tmp_path)) as workdir:
        restoring.saver(checkpoints, pretrained, vocabulary, workdir)(state, b"here", None)

    def initial(experiment):
        experiment = dataclasses.replace(
            experiment,
            init=str(tmp_path),
            init_rename=("objective/.* ->",),
            init_fresh=("objective/.*",),
        )
        device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        abstract = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=device),
            Parts.of(experiment).shapes,
        )
        return restoring.initial_weights(experiment, vocabulary, abstract)["model"]

    other = initial(dataclasses.replace(pretrained, objective=MaskedLM()))
    for name, rows in (("token", 400), ("position", 16)):
        np.testing.assert_array_equal(other["embedding"][name], np.full((rows, 8), 1.0))
    np.testing.assert_array_equal(other["layers"]["wi"]["kernel"], np.full((1, 8, 8), 0.5))
    same = initial(pretrained)
    np.testing.assert_array_equal(same["embedding"]["token"], np.full((400, 8), 0.5))
