"""Requests that fail, that hang, and that no waiting mends."""

import threading
import time

import pytest

from t5x_lite.core import object_store
from t5x_lite.core.errors import InputError
from t5x_lite.core.object_store import BucketError, Patience, ask, ask_all
from tests.waiting import PATIENCE


@pytest.fixture(autouse=True)
def hurry(monkeypatch):
    """Short waits; called with limits, also a short patience."""
    monkeypatch.setattr(object_store, "_given_up", {})

    def hurry(**limits):
        hurried = Patience(**{"first": 0.001, "longest": 0.004, **limits})
        monkeypatch.setattr(object_store, "PATIENCE", hurried)

    hurry()
    return hurry


def failing(*errors):
    """A function that raises errors, one after another, and then returns how many there were."""
    left = list(errors)

    def request():
        if left:
            raise left.pop(0)
        return len(errors)

    return request


class HttpError(Exception):
    def __init__(self, code):
        super().__init__(f"code {code}")
        self.code = code


def test_a_request_is_sent_again():
    errors = [OSError("reset"), TimeoutError(), HttpError(503), HttpError("429"), KeyError("x")]
    assert ask("gs://b/a", failing(*errors)) == 5


def test_waits_double_and_are_partly_chance(monkeypatch, hurry):
    waits = []
    hurry(first=0.01, longest=0.03)
    monkeypatch.setattr(object_store, "_note", lambda url, error, wait: waits.append(wait))
    ask("gs://b/a", failing(*[OSError()] * 6))
    for wait, expected in zip(waits, (0.01, 0.02, 0.03, 0.03, 0.03, 0.03), strict=True):
        assert 0.5 * expected <= wait <= 1.5 * expected
    assert len({*waits}) == 6


def test_one_that_hangs_is_left_behind(hurry):
    hangs, ended = [True, True], []
    answered = threading.Event()

    def request():
        if hangs:
            hangs.pop()
            answered.wait(PATIENCE)
            ended.append(1)
        return 7

    hurry(answer=0.2)
    assert ask("gs://b/a", request) == 7
    hurry(answer=0.2, total=0.3)
    with pytest.raises(BucketError, match=r"gs://b/a cannot be read.*no response in 0\.2 seconds"):
        ask("gs://b/a", lambda: answered.wait(PATIENCE))
    assert (hangs, ended) == ([], [])
    answered.set()


def test_many_are_answered_in_their_order_and_few_are_under_way(monkeypatch):
    monkeypatch.setattr(object_store, "CONNECTIONS", 3)
    running, most, lock = [0], [0], threading.Lock()
    three = threading.Event()

    def request(number):
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
            if running[0] == 3:
                three.set()
        assert three.wait(PATIENCE)
        time.sleep(0.002 * (number % 4))
        with lock:
            running[0] -= 1
        return number

    requests = [("gs://b/a", lambda number=number: request(number)) for number in range(20)]
    assert ask_all(requests) == list(range(20))
    assert most[0] == 3
    assert ask_all([]) == []


def test_a_bucket_that_stays_away(hurry):
    hurry(total=0.3)
    with pytest.raises(BucketError) as raised:
        ask("gs://b/a", failing(*[OSError("no\nroute")] * 10_000))
    assert str(raised.value) == (
        "gs://b/a cannot be read for 0.3 seconds (OSError: no route); check the network and the "
        "bucket, and run the same command again"
    )


def test_one_that_was_given_up_is_asked_for_nothing_for_a_while(hurry):
    """So that the many threads of tf.data do not wait for it one after another."""
    hurry(total=0.3, silence=3600.0)
    with pytest.raises(BucketError) as first:
        ask("gs://b/a", failing(*[OSError("away")] * 10_000))
    sent = []
    with pytest.raises(BucketError) as second:
        ask_all([("gs://b/c", lambda: sent.append(1))])
    assert (str(first.value), sent) == (str(second.value), [])
    assert ask("gs://other/c", lambda: 5) == 5
    object_store._given_up["gs://b"] = (time.monotonic(), str(first.value))  # until now
    assert ask("gs://b/c", lambda: 6) == 6


def test_when_the_program_ends_nothing_is_waited_for(monkeypatch):
    monkeypatch.setattr(object_store, "_stopped", threading.Event())
    monkeypatch.setattr(object_store, "_LOOK_SECONDS", 0.01)
    ended, answers = threading.Event(), []
    threading.Timer(0.05, object_store.stop).start()
    with pytest.raises(BucketError, match="the program ends"):
        ask("gs://b/a", lambda: answers.append(ended.wait(PATIENCE)), answer=PATIENCE)
    assert answers == []
    ended.set()


class DefaultCredentialsError(Exception):
    pass


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (FileNotFoundError("b/a"), FileNotFoundError, "No such file or directory: 'gs://b/a'"),
        (HttpError(404), FileNotFoundError, "No such file or directory: 'gs://b/a'"),
        (IsADirectoryError("b/a"), IsADirectoryError, "gs://b/a"),
        (
            PermissionError("Forbidden"),
            InputError,
            "^gs://b/a cannot be accessed .Perm.*credentials with",
        ),
        (HttpError(403), InputError, "^gs://b/a cannot be accessed .*code 403"),
        (DefaultCredentialsError("none"), InputError, "^gs://b/a cannot be accessed .*none"),
        (HttpError(400), InputError, "^gs://b/a cannot be read .*code 400"),
        (ImportError("gcsfs"), InputError, "^gs://b/a needs the package gcsfs"),
        (InputError("as it is"), InputError, "^as it is$"),
        (ValueError("our fault"), ValueError, "^our fault$"),
    ],
)
def test_what_waiting_does_not_mend_is_raised_at_once(error, kind, message):
    sent = []

    def request():
        sent.append(1)
        raise error

    with pytest.raises(kind, match=message):
        ask("gs://b/a", request)
    assert len(sent) == 1


def test_a_message_names_the_package():
    assert str(object_store.not_installed("s3://b")).startswith("s3://b needs the package s3fs")
    assert "fsspec's package for oss://" in str(object_store.not_installed("oss://b"))
