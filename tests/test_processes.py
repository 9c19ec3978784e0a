"""What processes tell each other; with several, tests/e2e/test_damage.py and its like."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils

from t5x_lite.processes import first_told


def test_one_process_tells_itself():
    assert first_told("") == ""
    assert first_told("damaged") == "damaged"


@pytest.mark.parametrize(
    ("texts", "expected"),
    [(["", "", ""], ""), (["", "ä" * 300, "second"], "ä" * 200), (["first", "second"], "first")],
)
def test_the_first_text_of_several_processes(monkeypatch, texts, expected):
    sent = []
    monkeypatch.setattr(jax, "process_count", lambda: len(texts))
    gather = SimpleNamespace(one=lambda mine: sent.append(np.array(mine)) or mine)
    monkeypatch.setattr(multihost_utils, "process_allgather", gather.one)
    for text in texts:
        first_told(text)
    monkeypatch.setattr(multihost_utils, "process_allgather", lambda mine: np.stack(sent))
    assert [first_told(text) for text in texts] == [expected] * len(texts)
