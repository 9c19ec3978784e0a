"""Predictions in batches: their order, their padding, and the metrics computed from them."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.core.sharding import MeshConfig, make_mesh
from t5x_lite.decoding.sampling import Decoding
from t5x_lite.inference.generate import (
    Generator,
    Sample,
    TaskEvaluator,
    as_text,
    batched,
    pad,
    padded_length,
)

INPUTS = [[7, 5, 1], [9, 1], [3, 4, 5, 6, 1], [1], [*range(30, 50), 1]]


class Words:
    """A vocabulary that writes ids as numbers, up to the end."""

    def decode(self, ids):
        ids = list(ids)
        return " ".join(map(str, ids[: ids.index(1)] if 1 in ids else ids))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Echo:
    """A model that says its inputs again after the prompt, `shift` higher, and then the end.

    The cache is what each row says and the number of tokens said.
    """

    shift: Any

    def prefill(self, inputs, *, max_length, prompt=None):
        skipped = 0 if prompt is None else jnp.sum(prompt > 0, axis=1)
        said = jnp.where(inputs > 1, inputs + self.shift, inputs)
        said = jnp.pad(said, ((0, 0), (0, max_length)))
        column = jnp.arange(said.shape[1]) + jnp.reshape(skipped, (-1, 1))
        return self.logits((jnp.take_along_axis(said, column, axis=1, mode="clip"), jnp.int32(0)))

    def step(self, tokens, cache):
        return self.logits(cache)

    def logits(self, cache):
        said, index = cache
        return 5 * jax.nn.one_hot(said[:, index], 64), (said, index + 1)

    def repeat(self, cache, num):
        said, index = cache
        return jnp.repeat(said, num, axis=0), index

    def select(self, cache, rows):
        said, index = cache
        return said[rows], index


@pytest.fixture(scope="module")
def generator():
    def make(*, batch_size, mesh=None, **decoding):
        return Generator(
            lambda params: Echo(params["shift"]),
            Words(),
            batch_size=batch_size,
            decoding=Decoding(**({"max_decode_length": 24} | decoding)),
            mesh=mesh,
        )

    return make


def predict(generator, inputs=INPUTS, shift=1, **options):
    rows = [np.array(row, np.int32) for row in inputs]
    return generator.run({"shift": jnp.int32(shift)}, rows, **options)


def run(*arguments, **options):
    return [best.text for best, *_ in predict(*arguments, **options)]


@pytest.mark.parametrize("batch_size", [1, 2, 3, 5, 8])
def test_predictions_come_in_the_order_of_the_inputs(generator, batch_size):
    assert run(generator(batch_size=batch_size)) == [
        "8 6",
        "10",
        "4 5 6 7",
        "",
        " ".join(str(i) for i in range(31, 51)),
    ]


def test_on_a_mesh(generator):
    on_mesh, plain = (
        generator(batch_size=2, max_decode_length=4, mesh=mesh)
        for mesh in (make_mesh(MeshConfig()), None)
    )
    prompts = [np.zeros(0, np.int32), *[np.array([8], np.int32)] * 4]
    for options in ({}, {"prompts": prompts}):
        assert predict(on_mesh, **options) == predict(plain, **options)


def test_parameters_are_arguments(generator):
    made = generator(batch_size=2)
    assert run(made, [[7, 1]], shift=2) == ["9"]
    assert run(made, [[7, 1]], shift=3) == ["10"]


def test_at_most_max_length_tokens(generator):
    assert run(generator(batch_size=2, max_decode_length=2)) == ["8 6", "10", "4 5", "", "31 32"]


def test_a_prediction_has_its_tokens_and_its_score(generator):
    # One token has logit 5 and 63 have 0.
    log_p = 5 - np.log(np.exp(5) + 63)
    (short,), (long,) = predict(generator(batch_size=2, max_decode_length=2), [[7, 1], [7, 5, 1]])
    assert (short.text, short.ids) == ("8", (8, 1))
    assert (long.text, long.ids) == ("8 6", (8, 6))
    assert short.score == pytest.approx(2 * log_p, rel=1e-5)


@pytest.mark.slow
def test_the_best_come_first(generator):
    found = predict(
        generator(batch_size=2, num_beams=3, num_return=3, max_decode_length=4, length_rule="hf")
    )
    assert [len(predictions) for predictions in found] == [3] * 5
    assert [best.text for best, *_ in found] == ["8 6", "10", "4 5 6 7", "", "31 32 33 34"]
    for predictions in found:
        scores = [prediction.score for prediction in predictions]
        assert scores == sorted(scores, reverse=True)
        assert len({prediction.ids for prediction in predictions}) == 3


@pytest.mark.parametrize("batch_size", [2, 5])
def test_outputs_go_on_from_their_prompts(generator, batch_size):
    prompts = [[8], [], [4, 5], [], [31] * 18]
    found = run(generator(batch_size=batch_size), prompts=[np.array(p, np.int32) for p in prompts])
    assert found == ["6", "10", "6 7", "", "49 50"]


@pytest.mark.slow
def test_samples_depend_on_the_number_of_the_input_alone(generator):
    sampling = {"temperature": 3.0, "max_decode_length": 6, "num_return": 2, "seed": 3}
    made = {size: generator(batch_size=size, **sampling) for size in (2, 4)}

    def ids(batch_size, inputs=INPUTS, **options):
        found = predict(made[batch_size], inputs, **options)
        return [[prediction.ids for prediction in predictions] for predictions in found]

    together = ids(4)
    assert ids(2) == together
    assert ids(2, INPUTS[2:], offset=2) == together[2:]
    assert ids(2, INPUTS[2:]) != together[2:]
    assert len({first for (first, _) in ids(2, [[7, 1]] * 4)}) > 1


def test_an_input_with_its_own_seed_does_not_depend_on_its_number(generator):
    made = generator(batch_size=2, temperature=3.0, max_decode_length=6, seed=3)

    def ids(inputs=INPUTS, **options):
        return [best.ids for best, *_ in predict(made, inputs, **options)]

    plain = ids()
    seeded = ids(seeds=[None, 8, None, 3, None])
    assert [a == b for a, b in zip(seeded, plain, strict=True)] == [True, False, True, False, True]
    moved = ids([INPUTS[3], INPUTS[0], INPUTS[1]], seeds=[3, None, 8], offset=5)
    assert (moved[0], moved[2]) == (seeded[3], seeded[1])
    # It is what the first input gets by that seed.
    assert ids([INPUTS[3]]) == [seeded[3]]


def test_no_inputs(generator):
    assert run(generator(batch_size=2), []) == []


def test_pad():
    got = pad([np.array([5, 1]), np.array([1])], rows=3)
    assert got.shape == (3, 16)
    assert got.dtype == np.int32
    assert got[:, :3].tolist() == [[5, 1, 0], [1, 0, 0], [0, 0, 0]]
    assert not got[:, 3:].any()


@pytest.mark.parametrize(("length", "padded"), [(1, 16), (16, 16), (17, 32), (32, 32), (33, 64)])
def test_lengths_are_powers_of_two(length, padded):
    assert pad([np.ones(length, np.int32)], rows=1).shape == (1, padded)
    assert padded_length(length, minimum=1) == (1 if length == 1 else padded)
    assert pad([np.ones(0, np.int32)], rows=1, minimum=4).shape == (1, 4)


def test_batched():
    assert list(batched([1, 2, 3, 4, 5], 2)) == [[1, 2], [3, 4], [5]]
    assert list(batched([], 2)) == []


class Question:
    """An example of a task whose metric compares numbers."""

    def __init__(self, inputs, target):
        self.inputs_text = " ".join(map(str, inputs))
        self.targets_text = str(target)
        self.inputs = np.array([*inputs, 1], np.int32)
        self.target = target
        self.raw = {"unit": "kg"}


def postprocess(text, *, example, is_target):
    assert example == {"unit": "kg"}
    assert not is_target
    return int(text) if text.isdigit() else -1


def exact(targets, predictions):
    return {"exact": 100 * sum(map(int.__eq__, targets, predictions)) / len(targets)}


def distance(targets, predictions):
    return {"distance": np.float32(np.mean(np.abs(np.subtract(targets, predictions))))}


@pytest.fixture
def task(generator):
    examples = [Question([7], 8), Question([3], 9), Question([5, 5], 6), Question([20], 21)]
    return TaskEvaluator(
        generator(batch_size=3), examples, postprocess=postprocess, metrics=[exact, distance]
    )


def test_task_metrics_compare_what_the_task_makes_of_the_text(task):
    # 8, 4, "6 6" and 21 for 8, 9, 6 and 21.
    assert task.run({"shift": jnp.int32(1)}) == {"exact": 50.0, "distance": (5 + 7) / 4}
    assert task.samples == [
        Sample(inputs="7", targets="8", prediction="8"),
        Sample(inputs="3", targets="9", prediction="4"),
        Sample(inputs="5 5", targets="6", prediction="6 6"),
        Sample(inputs="20", targets="21", prediction="21"),
    ]


def test_the_names_of_the_metrics_are_known_before_a_run(task):
    assert task.names() == ["exact", "distance"]
    assert task.samples == []


@pytest.mark.parametrize(
    ("found", "shown"),
    [("Ann", "Ann"), ({"value": "Ann"}, "Ann"), ({"value": 1}, "7"), (1, "7"), (0.5, "7")],
)
def test_a_prediction_is_shown_as_the_text_that_is_made_of_it(found, shown):
    assert as_text("7", found) == shown
