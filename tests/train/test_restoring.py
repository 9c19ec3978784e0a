"""Where a run begins: what is saved with a step, and where the position in the data is."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite import layouts
from t5x_lite.checkpoints.init import Init
from t5x_lite.checkpoints.reading import Checkpoints
from t5x_lite.core.errors import InputError
from t5x_lite.data.vocabularies.loading import load_vocabulary
from t5x_lite.inference.loading import learner_of
from t5x_lite.models.encoder import BertConfig
from t5x_lite.objectives.electra import Electra
from t5x_lite.objectives.learner import Learner
from t5x_lite.objectives.masked_lm import MaskedLM
from t5x_lite.train import restoring
from t5x_lite.train.restoring import WorkDirectory
from t5x_lite.train.step import TrainState


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
        return restoring.resume(checkpoints, experiment, wanted, batches)[0], batches.position


def test_a_state_comes_back_with_its_position(save, tmp_path, tiny_experiment, state):
    assert resume(tmp_path, tiny_experiment, state) == (None, None)
    assert save(tiny_experiment) == {"position": b"here"}
    got, position = resume(tmp_path, tiny_experiment, state)
    assert position == b"here"
    jax.tree.map(np.testing.assert_array_equal, got, state)


def test_a_step_of_another_run_is_moved_aside(save, tmp_path, tiny_experiment, state, caplog):
    save(tiny_experiment)
    elsewhere = dataclasses.replace(tiny_experiment.data, directory="elsewhere")
    ours = dataclasses.replace(tiny_experiment, data=elsewhere, steps=99)
    assert resume(tmp_path, ours, state)[1] == b"here"
    step = tmp_path / "checkpoints" / "7"
    another = dataclasses.replace(tiny_experiment, seed=5)
    with pytest.raises(
        InputError, match=r"7 \(it is of another experiment: seed is 0 in the saved config and 5"
    ):
        resume(tmp_path, another, state)
    assert step.is_dir()
    save_step(tmp_path, another, step=3)
    assert resume(tmp_path, another, state)[1] == b"there"
    assert (
        "is damaged (it is of another experiment: seed is 0 in the saved config and 5 now)"
        in caplog.text
    )
    assert "and is now 7.damaged; training resumes from step 3" in caplog.text


def test_a_step_without_checksums_is_resumed_with_a_warning(
    save, tmp_path, tiny_experiment, state, caplog
):
    save(tiny_experiment)
    resume(tmp_path, tiny_experiment, state)
    assert "no checksums" not in caplog.text
    with Checkpoints(tmp_path) as checkpoints, WorkDirectory.open(str(tmp_path)) as workdir:
        vocabulary = load_vocabulary(tiny_experiment.data.vocabulary)
        saver = restoring.saver(checkpoints, tiny_experiment, vocabulary, workdir)
        saver(dataclasses.replace(state, step=jnp.int32(8)), b"there", None, hurried=True)
    assert resume(tmp_path, tiny_experiment, state)[1] == b"there"
    [line] = [record.getMessage() for record in caplog.records]
    assert line == (
        f"checkpoint {tmp_path}/checkpoints/8 has no checksums, because a signal ended the run; "
        "only file sizes were verified"
    )


def save_step(tmp_path, experiment, *, step):
    state = TrainState(jnp.int32(step), {"model": {"w": jnp.ones(3)}}, {"mean": jnp.ones(2)})
    vocabulary = load_vocabulary(experiment.data.vocabulary)
    with Checkpoints(tmp_path) as checkpoints, WorkDirectory.open(str(tmp_path)) as workdir:
        restoring.saver(checkpoints, experiment, vocabulary, workdir)(state, b"there", None)


def test_the_position_in_a_cache_is_that_of_all_processes(
    save, tmp_path, tiny_experiment, state, monkeypatch
):
    experiment = from_cache(tiny_experiment)
    assert save(experiment) == {"position": b"here"}
    assert resume(tmp_path, experiment, state)[1] == b"here"


BERT = BertConfig(vocab_size=400, d_model=8, d_ff=8, num_heads=1, num_layers=1, max_positions=16)


@pytest.fixture
def halves(tmp_path, tiny_experiment):
    """An experiment of an objective whose only checkpoint holds nothing but 0.5."""

    def make(objective):
        layout = dataclasses.replace(tiny_experiment.data, layout=layouts.Encoder())
        experiment = dataclasses.replace(
            tiny_experiment, model=BERT, objective=objective, data=layout
        )
        vocabulary = load_vocabulary(experiment.data.vocabulary)
        state = TrainState(jnp.int32(7), full(experiment, 0.5), {"mean": jnp.ones(2)})
        with Checkpoints(tmp_path) as checkpoints, WorkDirectory.open(str(tmp_path)) as workdir:
            restoring.saver(checkpoints, experiment, vocabulary, workdir)(state, b"here", None)
        return dataclasses.replace(experiment, init=Init(checkpoint=str(tmp_path)))

    return make


def full(experiment, value):
    return jax.tree.map(lambda leaf: jnp.full(leaf.shape, value), learner_of(experiment).shapes)


def begun(experiment, fresh, *, objective, rename=(), leave=()):
    """The parameters with which another objective begins, where all fresh ones are `fresh`."""
    experiment = dataclasses.replace(
        experiment,
        objective=objective,
        init=dataclasses.replace(experiment.init, rename=rename, fresh=leave),
    )
    params = full(experiment, fresh)
    abstract = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), params
    )
    vocabulary = load_vocabulary(experiment.data.vocabulary)
    state = TrainState(0, params, None)
    learner = learner_of(experiment)
    return restoring.with_initial(state, experiment, learner, vocabulary, abstract)[0].params


def exported(objective, params):
    """The embedding that the model reads."""
    return Learner.of(BERT, objective).read(params)["model"]["embedding"]


@pytest.mark.slow
def test_tables_that_are_stored_as_differences_are_added_up_for_another_objective(halves):
    got = begun(
        halves(Electra(generator=BERT, sharing="gdes")),
        3.0,
        objective=MaskedLM(),
    )
    for name, rows in (("token", 400), ("position", 16)):
        np.testing.assert_array_equal(got["model"]["embedding"][name], np.full((rows, 8), 1.0))
    np.testing.assert_array_equal(
        got["model"]["layers"]["mlp"]["wi"]["kernel"], np.full((1, 8, 8), 0.5)
    )
    np.testing.assert_array_equal(got["heads"]["mlm"]["bias"], np.full(400, 3.0))


@pytest.mark.parametrize(("with_generator", "difference"), [(True, 0.5), (False, -2.0)])
@pytest.mark.slow
def test_a_difference_is_one_from_the_generator_that_there_is(halves, with_generator, difference):
    objective = Electra(generator=BERT, sharing="gdes")
    rules = {} if with_generator else {"rename": ("objective/.* ->",), "leave": ("objective/.*",)}
    got = begun(halves(objective), 3.0, objective=objective, **rules)
    np.testing.assert_array_equal(got["model"]["embedding"]["token"], np.full((400, 8), difference))
    np.testing.assert_array_equal(exported(objective, got)["token"], np.full((400, 8), 1.0))


def test_a_generator_alone_is_what_the_discriminator_begins_with(halves):
    """What stays fresh is a difference of zero, whatever it is a difference from."""
    objective = Electra(generator=BERT, sharing="gdes")
    rename = (
        r"model/(.*) -> objective/generator/\1",
        r"heads/mlm/(.*) -> objective/generator_head/\1",
    )
    leave = ("model/.*", "heads/rtd")
    saved = halves(MaskedLM())
    got = begun(saved, 3.0, objective=objective, rename=rename, leave=leave)
    generator = got["objective"]["generator"]["embedding"]
    np.testing.assert_array_equal(generator["token"], np.full((400, 8), 0.5))
    # begun() has differences of 3.0 where a new run has zeros.
    np.testing.assert_array_equal(got["model"]["embedding"]["token"], np.full((400, 8), 3.0))
    with pytest.raises(
        InputError, match=r"model/embedding/token would be loaded as objective/generator/"
    ):
        begun(saved, 3.0, objective=Electra(generator=BERT), rename=rename, leave=leave)


@pytest.mark.parametrize("shared", [True, False])
def test_layers_that_are_shared_on_one_side_alone(shared, tmp_path, tiny_experiment):
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    model = tiny_experiment.model.replace(**sizes)
    ours, theirs = (model.replace(share_layers=share) for share in (shared, not shared))
    there = dataclasses.replace(tiny_experiment, model=theirs)
    params = full(there, 0.5)
    params["model"]["encoder"]["layers"]["mlp"]["wo"]["kernel"] += 1.0
    vocabulary = load_vocabulary(there.data.vocabulary)
    with Checkpoints(tmp_path) as checkpoints, WorkDirectory.open(str(tmp_path)) as workdir:
        state = TrainState(jnp.int32(7), params, {"mean": jnp.ones(2)})
        restoring.saver(checkpoints, there, vocabulary, workdir)(state, b"here", None)
    here = dataclasses.replace(there, model=ours, init=Init(checkpoint=str(tmp_path)))
    got = begun(here, 3.0, objective=here.objective)["model"]
    np.testing.assert_array_equal(got["encoder"]["layers"]["mlp"]["wo"]["kernel"], np.float32(1.5))
    assert ("mlp" in got["decoder"]["layers"]) != shared
    if not shared:  # the decoder gets what it had of the encoder
        copies = got["decoder"]["layers"]["mlp"]["wo"]["kernel"]
        np.testing.assert_array_equal(copies, np.float32(1.5))
    assert not any(np.any(leaf == 3.0) for leaf in jax.tree.leaves(got))


@pytest.mark.slow
def test_a_discriminator_of_gdes_begins_with_the_tables_of_a_masked_language_model(halves):
    objective = Electra(generator=BERT, sharing="gdes")
    rename = (r"(model/.*)|objective/.* -> \1",)
    got = begun(
        halves(MaskedLM()), 0.125, objective=objective, rename=rename, leave=("objective/.*",)
    )
    for name, rows in (("token", 400), ("position", 16)):
        np.testing.assert_array_equal(got["model"]["embedding"][name], np.full((rows, 8), 0.375))
        np.testing.assert_array_equal(exported(objective, got)[name], np.full((rows, 8), 0.5))
    np.testing.assert_array_equal(
        got["model"]["layers"]["mlp"]["wi"]["kernel"], np.full((1, 8, 8), 0.5)
    )
