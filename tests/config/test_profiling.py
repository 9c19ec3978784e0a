import jax
import jax.numpy as jnp
import pytest

from t5x_lite.config import evaluation
from t5x_lite.config.evaluation import Capture, Profile
from t5x_lite.core.errors import InputError


@pytest.fixture
def calls(monkeypatch):
    """What the profiler was told: ("start", directory) and ("stop",)."""
    calls = []
    monkeypatch.setattr(jax.profiler, "start_trace", lambda d: calls.append(("start", d)))
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: calls.append(("stop",)))
    return calls


def run(profile, calls, *, steps, directory="trace"):
    """Takes steps; notes each, and where a trace was written."""
    with Capture(profile, directory) as capture:
        for step in steps:
            capture.before(step)
            calls.append(step)
            if capture.after(step, {"loss": jnp.float32(1)}):
                calls.append("written")


def test_the_chosen_steps_are_traced(calls):
    run(Profile(start=2, steps=2), calls, steps=range(1, 6))
    assert calls == [1, ("start", "trace"), 2, 3, ("stop",), "written", 4, 5]


def test_no_start_traces_nothing(calls):
    run(Profile(), calls, steps=range(4))
    assert calls == [0, 1, 2, 3]


def test_a_resumed_run_traces_the_steps_that_are_left(calls):
    run(Profile(start=2, steps=3), calls, steps=[4, 5])
    assert calls == [("start", "trace"), 4, ("stop",), "written", 5]


def test_a_run_that_ends_inside_of_a_trace_writes_it(calls):
    run(Profile(start=2, steps=3), calls, steps=[1, 2])
    assert calls == [1, ("start", "trace"), 2, ("stop",)]


def test_a_trace_for_a_bucket_is_written_here_and_copied(calls, monkeypatch, tmp_path):
    monkeypatch.setattr(evaluation, "open_path", lambda url: tmp_path / url.replace("://", "/"))

    def start(directory):
        calls.append(directory)

    here = tmp_path / "here"

    def stop():
        path = here / "plugins" / "host.xplane.pb"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"trace")

    monkeypatch.setattr(evaluation.tempfile, "mkdtemp", lambda: str(here))
    monkeypatch.setattr(jax.profiler, "start_trace", start)
    monkeypatch.setattr(jax.profiler, "stop_trace", stop)
    run(Profile(start=1, steps=1), [], steps=[1], directory="gs://bucket/run/profile")
    assert calls == [str(here)]
    assert not here.exists()
    copied = tmp_path / "gs" / "bucket" / "run" / "profile" / "plugins" / "host.xplane.pb"
    assert copied.read_bytes() == b"trace"


@pytest.mark.slow
def test_the_profiler_of_jax_writes_a_trace(tmp_path):
    run(Profile(start=1, steps=1), [], steps=[1], directory=str(tmp_path))
    assert [path.suffixes[-2:] for path in tmp_path.rglob("*.xplane.pb")] == [[".xplane", ".pb"]]


@pytest.mark.parametrize("name", ["start", "steps"])
def test_bad_settings(name):
    with pytest.raises(InputError, match=f"profile.{name} must be at least 1: got 0"):
        Profile(**{name: 0})
