"""Batches of requests: their sizes and lengths, waiting, the bound of the queue, the end."""

import queue
import threading
import time

import pytest

from t5x_lite.serve.batching import Batcher, Refused, Row
from tests.waiting import PATIENCE


class Recorder:
    """Answers with the payload in capitals, and notes the batches; it can be held up."""

    def __init__(self):
        self.batches = []
        self.free = threading.Event()
        self.free.set()
        self.begun = threading.Event()

    def __call__(self, payloads, *, size, lengths):
        self.begun.set()
        assert self.free.wait(PATIENCE)
        self.batches.append((list(payloads), size, lengths))
        if "fail" in payloads:
            raise RuntimeError("as asked")
        return [payload.upper() for payload in payloads]


@pytest.fixture
def make():
    """Makes a batcher that is closed afterwards."""
    made = []

    def make(function, *, wait=0.0, queue=64, sizes=(1, 4, 8), start=True, other=None):
        functions = {"a": function} | ({} if other is None else {"b": other})
        batcher = Batcher(functions, sizes=sizes, queue=queue, wait=wait)
        if start:
            batcher.start()
        made.append(batcher)
        return batcher

    yield make
    for batcher in made:
        batcher.close()


def rows(*texts, length=16):
    return [Row((length,), text) for text in texts]


def outcomes(batcher, *texts, kind="a", length=16):
    """Submits texts; returns a function that waits for their outcomes."""
    answers = queue.Queue()
    batcher.submit(kind, rows(*texts, length=length), on_done=answers.put)
    return lambda: answers.get(timeout=PATIENCE)


def test_outcomes_are_in_the_order_of_the_rows(make):
    function = Recorder()
    batcher = make(function)
    assert outcomes(batcher, "x", "y", "z")() == ["X", "Y", "Z"]
    [(payloads, size, lengths)] = function.batches
    assert (payloads, size, lengths) == (["x", "y", "z"], 4, (16,))
    assert batcher.num_waiting == 0


def test_requests_that_come_while_the_device_works_share_a_batch(make):
    function = Recorder()
    batcher = make(function)
    function.free.clear()
    first = outcomes(batcher, "first")
    assert function.begun.wait(PATIENCE)
    others = [outcomes(batcher, text) for text in "abcde"]
    assert batcher.num_waiting == 5
    function.free.set()
    assert first() == ["FIRST"]
    assert [other() for other in others] == [["A"], ["B"], ["C"], ["D"], ["E"]]
    assert function.batches[0][:2] == (["first"], 1)
    assert sum(len(p) for p, _, _ in function.batches[1:]) == 5
    assert len(function.batches) <= 3


def test_a_text_waits_for_others_for_a_bounded_time(make):
    function = Recorder()
    batcher = make(function, wait=0.2)
    start = time.monotonic()
    assert outcomes(batcher, "alone")() == ["ALONE"]
    assert 0.15 < time.monotonic() - start < 5
    batcher = make(function, wait=3600.0)
    first, second = outcomes(batcher, "x"), outcomes(batcher, "y")
    batcher.close()
    assert (first(), second()) == (["X"], ["Y"])
    assert [payloads for payloads, _, _ in function.batches] == [["alone"], ["x", "y"]]


def test_a_full_batch_does_not_wait(make):
    function = Recorder()
    batcher = make(function, wait=30.0)
    assert len(outcomes(batcher, *"abcdefgh")()) == 8
    assert function.batches[0][1] == 8


def test_shorter_texts_fill_a_batch_and_longer_ones_do_not(make):
    function = Recorder()
    batcher = make(function, start=False)
    middle = outcomes(batcher, "middle", length=32)
    longer = outcomes(batcher, "longer", length=64)
    shorter = outcomes(batcher, "shorter", length=16)
    batcher.start()
    assert (middle(), longer(), shorter()) == (["MIDDLE"], ["LONGER"], ["SHORTER"])
    assert [(p, lengths) for p, _, lengths in function.batches] == [
        (["middle", "shorter"], (32,)), (["longer"], (64,)),
    ]  # fmt: skip


def test_kinds_are_not_mixed(make):
    function, other = Recorder(), Recorder()
    batcher = make(function, start=False, other=other)
    first, second = outcomes(batcher, "x"), outcomes(batcher, "y", kind="b")
    batcher.start()
    assert (first(), second()) == (["X"], ["Y"])
    assert len(function.batches) == len(other.batches) == 1


def test_the_size_is_the_one_that_answers_more_texts_a_second(make):
    function = Recorder()
    batcher = make(function, start=False)
    for size, seconds in {1: 0.2, 4: 0.25, 8: 2.0}.items():
        batcher.learn("a", (16,), size=size, seconds=seconds)
    waiting = outcomes(batcher, *"abcde")
    batcher.start()
    assert waiting() == list("ABCDE")
    assert [(len(p), size) for p, size, _ in function.batches] == [(4, 4), (1, 1)]


def test_a_full_queue_refuses_and_says_when_to_come_again(make):
    function = Recorder()
    batcher = make(function, queue=4)
    function.free.clear()
    first = outcomes(batcher, "first")
    assert function.begun.wait(PATIENCE)
    waiting = outcomes(batcher, *"abc")
    with pytest.raises(Refused, match="The queue is full: 3 texts wait") as caught:
        outcomes(batcher, *"de")
    assert caught.value.status == 503
    assert int(caught.value.headers["Retry-After"]) >= 1
    fourth = outcomes(batcher, "f")
    function.free.set()
    assert (first(), waiting(), fourth()) == (["FIRST"], list("ABC"), ["F"])


def test_a_batch_that_fails_costs_its_own_requests_alone(make):
    batcher = make(Recorder())
    [refused] = outcomes(batcher, "fail")()
    assert (refused.status, "failed on this batch" in str(refused)) == (500, True)
    assert outcomes(batcher, "x")() == ["X"]


def test_rows_of_a_dropped_request_leave_the_queue(make):
    function, answers = Recorder(), queue.Queue()
    batcher = make(function)
    function.free.clear()
    first = outcomes(batcher, "first")
    assert function.begun.wait(PATIENCE)
    ticket = batcher.submit("a", rows("x", "y"), on_done=answers.put)
    last = outcomes(batcher, "last")
    batcher.drop(ticket)
    assert batcher.num_waiting == 1
    function.free.set()
    assert (first(), last()) == (["FIRST"], ["LAST"])
    assert answers.empty()
    assert [p for p, _, _ in function.batches] == [["first"], ["last"]]


def test_closing_answers_what_was_accepted(make):
    function = Recorder()
    batcher = make(function, wait=30.0, start=False)
    waiting = [outcomes(batcher, text) for text in "abcdefghij"]
    batcher.start()
    batcher.close()
    assert [each() for each in waiting] == [[text] for text in "ABCDEFGHIJ"]
    with pytest.raises(Refused, match="shutting down") as caught:
        outcomes(batcher, "late")
    assert caught.value.status == 503


def test_an_observer_is_told_of_every_batch():
    told = []

    class Observer:
        def batch(self, kind, *, rows, size, seconds):
            told.append((kind, rows, size, seconds >= 0))

    batcher = Batcher({"a": Recorder()}, sizes=(1, 4), queue=9, wait=0.0, observer=Observer())
    waiting = outcomes(batcher, "x", "y")
    batcher.start()
    assert waiting() == ["X", "Y"]
    batcher.close()
    assert told == [("a", 2, 4, True)]


def test_many_threads_lose_nothing(make):
    batcher = make(Recorder(), queue=10_000, wait=0.001)
    answers = queue.Queue()

    def ask(number):
        for turn in range(20):
            length = 16 if (number + turn) % 3 else 64
            text = f"t{number}-{turn}"
            batcher.submit(
                "a",
                rows(text, length=length),
                on_done=lambda got, text=text: answers.put((text, got)),
            )

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    received = [answers.get(timeout=PATIENCE) for _ in range(1000)]
    assert len({text for text, _ in received}) == 1000
    assert all(got == [text.upper()] for text, got in received)


def test_while_programs_are_compiled_a_row_takes_one_that_holds_it(make):
    recorder = Recorder()
    batcher = make(recorder, sizes=(1, 4))
    batcher.compiling(True)
    answer = outcomes(batcher, "x", "y")
    assert not recorder.begun.wait(0.1)
    assert batcher.answerable == frozenset()
    batcher.learn("a", (8,), size=4, seconds=0.1)  # too short for the rows
    assert not recorder.begun.wait(0.1)
    batcher.learn("a", (64,), size=1, seconds=0.1)
    assert answer() == ["X", "Y"]
    assert recorder.batches == [(["x"], 1, (64,)), (["y"], 1, (64,))]
    assert batcher.answerable == {"a"}
    batcher.compiling(False)
    assert outcomes(batcher, "z")() == ["Z"]
    assert recorder.batches[-1] == (["z"], 1, (16,))
