"""Sizes of configs and options that no device can hold: one line, before anything is written."""

import pytest

from t5x_lite.adapters.grammar import parse_module
from t5x_lite.adapters.lora import Lora
from t5x_lite.config import Experiment
from t5x_lite.config.batches import check_batch
from t5x_lite.config.experiment import with_options
from t5x_lite.core import devices, sharding
from t5x_lite.core.errors import InputError
from t5x_lite.data.config import Data
from t5x_lite.data.vocabularies.byte_level import Bytes
from t5x_lite.decoding.sampling import Decoding
from t5x_lite.inference.generate import Generator
from t5x_lite.inference.loading import learner_of
from t5x_lite.models.t5 import T5Config
from t5x_lite.objectives.likelihood import Seq2Seq
from t5x_lite.optim.config import Adafactor, Constant
from t5x_lite.optim.partial import joint_optimizer
from t5x_lite.train.step import abstract_state, state_shardings
from t5x_lite.train.training import check_memory

EXPERIMENT = Experiment(
    model=T5Config(
        vocab_size=384,
        d_model=16,
        d_kv=4,
        d_ff=32,
        num_heads=4,
        num_encoder_layers=1,
        num_decoder_layers=1,
    ),
    objective=Seq2Seq(),
    data=Data(task="tasks.x:y", vocabulary="bytes", batch_size=4, inputs_length=8),
    optimizer=Adafactor(schedule=Constant(value=1e-3)),
    steps=2,
)


def checked(*options):
    """What `train` checks before it opens data or writes anything."""
    experiment = with_options(EXPERIMENT, options)
    mesh = sharding.make_mesh(experiment.mesh)
    check_batch(experiment, mesh)
    learner = learner_of(experiment)
    layout = state_shardings(mesh, learner.axes, learner.optimizer_axes())
    state = abstract_state(learner.shapes, joint_optimizer(learner.updates()), layout)
    check_memory(experiment, learner, state, mesh)


def test_what_fits_is_accepted():
    checked()
    checked("--adapters.add", "two = lora(rank=8)")


@pytest.mark.parametrize("size", ["1000000000", "2147483647", "2147483648", "1" + "0" * 30])
@pytest.mark.parametrize(
    "option",
    [
        *(f"--model.{name}" for name in ("vocab-size", "d-model", "d-ff", "num-encoder-layers")),
        "--data.batch-size",
        "--data.inputs-length",
        "--microbatches",
    ],
)
def test_a_size_of_a_config_is_one_line(option, size):
    with pytest.raises(InputError) as error:
        checked(option, size)
    assert len(str(error.value)) < 500


@pytest.mark.parametrize("size", ["1000000000", "2147483647", "9223372036854775808", "1e-320"])
@pytest.mark.parametrize(
    "module",
    [
        "lora(rank={})",
        "prompt(length={})",
        "prefix(length={})",
        "prefix(hidden={})",
        "experts(num={})",
        "compacter(phm_dim={})",
        "hyper(hidden={})",
        "fastfood(d={})",
        "prune(rounds={})",
        "t5_adapter(width={})",
        "lora(rank={}) + prompt(length={})",
    ],
)
def test_a_size_of_a_module_is_one_line(module, size):
    with pytest.raises(InputError) as error:
        checked("--adapters.add", f"two = {module.replace('{}', size)}")
    assert len(str(error.value)) < 500


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("two = seq_bn(reduction=1e-320)", "reduction must be 0, or above 1e-38"),
        ("two = seq_bn(reduction=1e-30)", "reduction must be at least 1/64"),
        (f"two = lora(rank={2**63})", "rank must be at most 2,147,483,647"),
        ("two = " + "x" * 20000, "expected METHOD"),
        (f"two = lora(r='{'x' * 20000}')", "r must be a whole number"),
        ("1 +" * 20000 + "1", "column"),
    ],
)
def test_a_line_of_a_module_is_repeated_in_part(text, reason):
    with pytest.raises(InputError, match=reason) as error:
        parse_module(text)
    assert len(str(error.value)) < 400


def test_python_s_own_configs_have_the_bounds():
    with pytest.raises(InputError, match="rank must be at most"):
        Lora(rank=2**63)


@pytest.mark.parametrize(
    ("batch", "changes"),
    [
        (1 << 40, {}),
        (32, {"num_beams": 10**9}),
        (32, {"num_return": 10**9, "temperature": 1.0}),
        (32, {"max_decode_length": 10**9}),
    ],
)
def test_a_search_that_does_not_fit_is_refused(batch, changes):
    with pytest.raises(InputError, match=r"must have at most|need at least"):
        Generator(
            lambda params: None,
            Bytes(),
            batch_size=batch,
            decoding=Decoding(**changes),
            position_bytes=1000,
        )


def test_a_small_host_is_the_limit(monkeypatch):
    monkeypatch.setattr(devices, "of_host", lambda: 100_000)
    with pytest.raises(InputError, match=r"parameters .* need at least"):
        checked()
