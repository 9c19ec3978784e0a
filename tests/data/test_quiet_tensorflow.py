import os
import subprocess
import sys
from pathlib import Path

import pytest

from t5x_lite.core.errors import install_command

ROOT = Path(__file__).resolve().parents[2]

BLOCKED = """
import sys
sys.modules["tensorflow"] = None
from t5x_lite.core.errors import InputError
try:
    import t5x_lite.data.reading
except InputError as error:
    print(error)
"""


ERROR = """
import jax
from t5x_lite.data.reading import tf

def fail():
    raise ValueError("of the data")

dataset = tf.data.Dataset.range(1).map(lambda n: tf.numpy_function(fail, [], tf.int64))
try:
    next(iter(dataset))
except tf.errors.InvalidArgumentError:
    print(tf.config.get_visible_devices("GPU"))
"""

LEVEL = """
import os, sys
import jax
sys.modules["seqio"] = None
try:
    import t5x_lite.data.elements
except ValueError:
    print(os.environ["TF_CPP_MIN_LOG_LEVEL"])
"""


def run(code, *, level=None):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("TF_CPP_MIN_LOG_LEVEL", None)
    if level is not None:
        environment["TF_CPP_MIN_LOG_LEVEL"] = level
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )


@pytest.mark.exhaustive
def test_tensorflow_takes_no_device_and_writes_nothing_of_its_import_and_of_errors():
    done = run(ERROR)
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.slow
def test_without_tensorflow_the_error_says_what_to_install():
    done = run(BLOCKED)
    assert done.stdout.startswith("reading text needs TensorFlow and seqio")
    assert done.stdout.endswith(f"; {install_command('data')}\n")


@pytest.mark.gate("0-0")
@pytest.mark.parametrize(("level", "kept"), [(None, "3"), ("0", "0")])
@pytest.mark.slow
def test_the_level_that_jax_sets_is_raised_and_a_persons_is_not(level, kept):
    assert run(LEVEL, level=level).stdout == f"{kept}\n"


def test_seqios_warnings_are_dropped_and_others_are_not(caplog):
    import logging

    from t5x_lite.data import elements

    absl = logging.getLogger("absl")
    of_seqio = absl.makeRecord("absl", logging.WARNING, elements.seqio.__file__, 1, "", (), None)
    of_orbax = absl.makeRecord("absl", logging.WARNING, "orbax/checkpoint.py", 1, "", (), None)
    assert not absl.filter(of_seqio)
    assert absl.filter(of_orbax)
