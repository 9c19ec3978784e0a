import subprocess
import sys

import pytest

ENDING = """
import time
from t5x_lite.data.tasks import stages
from t5x_lite.data.reading import Feed, as_numpy
from t5x_lite.data.elements import tf

def slow(example):
    time.sleep(0.3)
    return example

numbers = tf.data.Dataset.range(1000).map(lambda number: {"number": number[None]})
dataset = stages.map_numpy(numbers, slow, {"number": tf.TensorSpec([None], tf.int64)}).prefetch(4)
feed = Feed(stages.in_blocks(dataset, ("number",), 4), ("number",))
examples = as_numpy(dataset)
print("number", next(feed), next(examples))
"""


@pytest.mark.slow
def test_a_script_that_keeps_its_iterators_ends():
    pytest.importorskip("tensorflow")
    line = [sys.executable, "-c", ENDING]
    done = subprocess.run(line, timeout=120, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout.count("number")) == (0, 2), done.stderr
    assert "Traceback" not in done.stderr
