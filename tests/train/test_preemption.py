"""The metadata server is one of our own here: no other one is asked."""

import signal
import threading

import pytest

from t5x_lite.core.sharding import MeshConfig, make_mesh
from t5x_lite.train import stopping
from t5x_lite.train.stopping import StopSignals
from tests.metadata_server import MAINTENANCE, PREEMPTED, Server
from tests.waiting import PATIENCE, wait_until


@pytest.fixture
def server(monkeypatch):
    server = Server()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{server.server_port}")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setattr(stopping, "on_google_cloud", lambda: True)
    monkeypatch.setattr(stopping, "_AGAIN_SECONDS", 0.01)
    yield server
    server.end()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def mesh():
    return make_mesh(MeshConfig())


def test_the_notice_is_a_sigterm(server, mesh, caplog):
    path = f"/computeMetadata/v1/instance/{PREEMPTED}"
    with StopSignals() as stop, stopping.watched(stop):
        wait_until(lambda: len(server.asked_for(PREEMPTED)) == 3)
        assert stop.requested(mesh) is None
        server.notice.set()
        wait_until(lambda: stop.received)
        assert stop.received == signal.SIGTERM
    waiting = (f"{path}?wait_for_change=true&timeout_sec=60&last_etag=before", "Google")
    assert server.asked_for(PREEMPTED)[:3] == [(path, "Google"), (path, "Google"), waiting]
    assert caplog.messages == ["this machine is being preempted; saving a checkpoint"]


def test_maintenance_saves_once_and_ends_nothing(server, mesh, caplog):
    with StopSignals() as stop, stopping.watched(stop):
        wait_until(lambda: len(server.asked_for(MAINTENANCE)) == 3)
        assert (stop.after_step(mesh, None), stop.save_asked()) == (None, False)
        server.maintenance.set()
        wait_until(lambda: stop.notices)
        wait_until(lambda: len(server.asked_for(MAINTENANCE)) == 4)
        assert [(stop.after_step(mesh, None), stop.save_asked()) for _ in range(3)] == [
            (None, True),
            (None, False),
            (None, False),
        ]
    said = "this machine is about to stop for maintenance; saving a checkpoint"
    assert caplog.messages == [said]


def test_a_notice_after_the_run_ends_nothing(server):
    with StopSignals() as stop:
        with stopping.watched(stop):
            wait_until(lambda: len(server.asked_for(PREEMPTED)) == 3)
        server.end()
        names = (PREEMPTED, MAINTENANCE)
        watching = [thread for thread in threading.enumerate() if thread.name in names]
        assert watching
        for thread in watching:
            thread.join(PATIENCE)
        assert (stop.received, stop.notices) == (None, 0)


def test_elsewhere_nobody_is_asked(server, monkeypatch):
    monkeypatch.setattr(stopping, "on_google_cloud", lambda: False)
    with stopping.watched(StopSignals()):
        assert PREEMPTED not in [thread.name for thread in threading.enumerate()]
    assert server.asked == []
