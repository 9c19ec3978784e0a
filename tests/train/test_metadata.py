import http.server
import socket
import threading

import pytest

from t5x_lite.train import hosts
from tests.metadata_server import PREEMPTED, Server
from tests.waiting import PATIENCE


def test_google_cloud_is_known_by_its_product_name(tmp_path):
    product = tmp_path / "product_name"
    assert not hosts.on_google_cloud(product)
    product.write_text("Standard PC\n")
    assert not hosts.on_google_cloud(product)
    product.write_text("Google Compute Engine\n")
    assert hosts.on_google_cloud(product)


def test_a_value_with_its_mark(monkeypatch):
    server = Server()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{server.server_port}")
    server.asked.append((f"/{PREEMPTED}", ""))  # it fails at the first request alone
    found = hosts.Metadata().get(f"instance/{PREEMPTED}", seconds=PATIENCE)
    assert found == hosts.Answer(b"FALSE", etag="before")
    server.shutdown()
    server.server_close()
    thread.join()


def test_whether_there_is_a_server(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("GCE_METADATA_IP", f"127.0.0.1:{server.getsockname()[1]}")
        assert hosts.is_reachable(seconds=PATIENCE)
    assert not hosts.is_reachable(seconds=PATIENCE)


def test_a_name_that_is_looked_up_for_ever_is_given_up(monkeypatch):
    ended, answers = threading.Event(), []

    def look_up(address, timeout):
        answers.append(ended.wait(PATIENCE))
        raise OSError("no such name")

    monkeypatch.setattr(socket, "create_connection", look_up)
    assert not hosts.is_reachable(seconds=0.1)
    assert answers == []
    ended.set()


@pytest.mark.parametrize(
    ("status", "found"), [(200, True), (404, False), (403, None), (503, None), (0, None)]
)
def test_whether_this_is_a_worker_of_a_slice(status, found, monkeypatch):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            assert self.path == "/computeMetadata/v1/instance/attributes/agent-worker-number"
            assert self.headers["Metadata-Flavor"] == "Google"
            if status:  # otherwise the connection ends without a word
                self.send_response(status)
                self.end_headers()
                self.wfile.write(b"3")

        def log_message(self, *arguments):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        monkeypatch.setenv("GCE_METADATA_IP", f"127.0.0.1:{server.server_port}")
        assert hosts.is_worker(seconds=PATIENCE) is found
