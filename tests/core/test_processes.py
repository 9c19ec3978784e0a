"""What processes tell each other; with several, tests/e2e/test_damage.py and its like."""

import threading
import time
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils

from t5x_lite.core.sharding import all_told, first_told


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


@pytest.mark.parametrize("texts", [["one"], ["same", "same"], ["short", "", "longer ä"]])
def test_the_texts_of_all_processes(monkeypatch, texts):
    rows, barrier = {}, threading.Barrier(len(texts))

    def gather(own):
        rows[threading.get_ident()] = own
        barrier.wait(timeout=60)
        found = np.stack([rows[each] for each in order])
        barrier.wait(timeout=60)
        return found

    def tell(text):
        order.append(threading.get_ident())
        told[text].append(all_told(text))

    order, told = [], {text: [] for text in texts}
    monkeypatch.setattr(jax, "process_count", lambda: len(texts))
    monkeypatch.setattr(multihost_utils, "process_allgather", gather)
    threads = [threading.Thread(target=tell, args=(text,)) for text in texts]
    for number, thread in enumerate(threads):
        thread.start()
        while len(order) <= number:
            time.sleep(0.001)
    for thread in threads:
        thread.join(timeout=60)
    assert all(found == [texts] * texts.count(text) for text, found in told.items())
