import subprocess
import sys

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.config import Data
from t5x_lite.data.mixing import Mixing
from t5x_lite.data.sources import batch_source


def data(**settings):
    return Data(vocabulary="bytes", **settings)


def test_a_cache_needs_no_tensorflow():
    code = (
        "import sys\n"
        "from t5x_lite.data.config import Data\n"
        "from t5x_lite.data.sources import batch_source\n"
        "name = batch_source(Data(vocabulary='bytes', task='tasks.glue:rte', cache='c')).__name__\n"
        "heavy = {'tensorflow', 'seqio'} & set(sys.modules)\n"
        "sys.exit(bool(heavy) or not name.endswith('cache.batches'))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_tasks_and_mixtures():
    pytest.importorskip("seqio")
    assert batch_source(data(task="tasks.text:span_corruption")).__name__.endswith(".pipeline")
    mixed = batch_source(data(task="tasks.mixtures:glue"))
    assert mixed.__name__.endswith(".pipeline")
    with pytest.raises(InputError, match="one task and no mixture"):
        batch_source(data(task="tasks.text:span_corruption", mixing=Mixing(by="equal")))
    with pytest.raises(InputError, match="no task 'gleu'"):
        batch_source(data(task="tasks.mixtures:gleu"))
