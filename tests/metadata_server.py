"""A metadata server of Google Cloud for tests: it says what is to become of this machine."""

import http.server
import threading

from tests.waiting import PATIENCE

PREEMPTED = "preempted"
MAINTENANCE = "maintenance-event"
_BEFORE_AND_AFTER = {
    PREEMPTED: (b"FALSE", b"TRUE"),
    MAINTENANCE: (b"NONE", b"TERMINATE_ON_HOST_MAINTENANCE"),
}


class Server(http.server.ThreadingHTTPServer):
    """For each of its two paths it fails at first, then says what is so, if need be after waiting.

    `notice` is that of preemption, `maintenance` the other one. Of `asked` each is (path, header),
    and `asked_for(PREEMPTED)` those of one path.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.notice, self.maintenance = threading.Event(), threading.Event()
        self.ended = threading.Event()
        self.asked = []

    def asked_for(self, name):
        return [each for each in self.asked if each[0].partition("?")[0].endswith(f"/{name}")]

    def end(self):
        """Answers whoever waits."""
        for event in (self.notice, self.maintenance, self.ended):
            event.set()


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self):
        self.server.asked.append((self.path, self.headers["Metadata-Flavor"]))
        name = self.path.partition("?")[0].rpartition("/")[2]
        if len(self.server.asked_for(name)) == 1:
            self.send_error(503)  # it is asked again
            return
        event = self.server.notice if name == PREEMPTED else self.server.maintenance
        before, after = _BEFORE_AND_AFTER[name]
        known = "last_etag=after" in self.path
        if "wait_for_change" in self.path and not known:
            event.wait(PATIENCE)
        elif known:
            self.server.ended.wait(PATIENCE)  # nothing changes any more
        self.send_response(200)
        self.send_header("ETag", "after" if event.is_set() else "before")
        self.end_headers()
        self.wfile.write(after if event.is_set() else before)

    def log_message(self, format, *args):
        pass
