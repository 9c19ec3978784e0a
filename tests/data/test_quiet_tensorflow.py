import subprocess
import sys

BLOCKED = """
import sys
sys.modules["tensorflow"] = None
from t5x_lite.errors import InputError
try:
    import t5x_lite.data.pipeline
except InputError as error:
    print(error)
"""


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)


def test_importing_the_pipeline_writes_nothing_and_takes_no_device():
    done = run("import t5x_lite.data.pipeline as p; print(p.tf.config.get_visible_devices('GPU'))")
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_without_tensorflow_the_error_says_what_to_install():
    done = run(BLOCKED)
    assert done.stdout.startswith("reading text needs TensorFlow and seqio")
    assert done.stdout.endswith("pip install 't5x_lite[data]'\n")


def test_only_log_lines_are_held_back(capfd):
    import os

    from t5x_lite.data.quiet_tensorflow import without_log_lines

    with without_log_lines():
        os.write(2, b"I0000 00:00:1795227168.411473 13843 port.cc:153] oneDNN\nTraceback: why\n")
    assert capfd.readouterr().err == "Traceback: why\n"


def test_seqios_warnings_are_dropped_and_others_are_not(caplog):
    import logging

    from t5x_lite.data import quiet_tensorflow

    absl = logging.getLogger("absl")
    of_seqio = absl.makeRecord(
        "absl", logging.WARNING, quiet_tensorflow.seqio.__file__, 1, "", (), None
    )
    of_orbax = absl.makeRecord("absl", logging.WARNING, "orbax/checkpoint.py", 1, "", (), None)
    assert not absl.filter(of_seqio)
    assert absl.filter(of_orbax)
