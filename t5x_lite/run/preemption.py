"""The cloud's notices that it takes this machine away, or stops it: training saves on them.

    with StopSignals() as stop, preemption.watched(stop):
        ...     # stop.received is SIGTERM some 30 seconds before the machine goes

SLURM, Kubernetes and a shutdown of the machine send SIGTERM by themselves. A VM of Google Cloud, a
host of a TPU slice among them, learns it earlier from its metadata server:

    instance/preempted           FALSE, then TRUE: a Spot VM goes in 30 seconds (Compute Engine
                                 documentation, "Create and use preemptible VMs")
    instance/maintenance-event   NONE, then TERMINATE_ON_HOST_MAINTENANCE: a VM that cannot migrate,
                                 with TPUs or GPUs, is stopped, and with it the whole slice; with
                                 GPUs in an hour, others in 60 seconds (the same, "Handle GPU host
                                 maintenance events"; GKE, "Manage disruption to GPUs and TPUs")

The first acts as SIGTERM. On the second the run saves once and goes on (docs/adr/0021): the machine
may be there for an hour yet, and a run that ended would be started on the same one again, to the
same notice. It ends by the SIGTERM of the shutdown.

A request with wait_for_change is answered when that happens, so nothing is asked again and again.
"""

import contextlib
import http.client
import logging
import signal
import threading
from collections.abc import Callable, Iterator

from t5x_lite.run.metadata import Metadata, on_google_cloud
from t5x_lite.train.stop import StopSignals

_logger = logging.getLogger(__name__)

_WAIT_SECONDS = 60
"""How long the server keeps a request that it has nothing to say to."""
_AGAIN_SECONDS = 10.0
"""After an error, until the server is asked again."""


@contextlib.contextmanager
def watched(stop: StopSignals) -> Iterator[None]:
    """While it is entered, notices are told to `stop`; elsewhere than there nothing is done."""
    if not on_google_cloud():
        yield
        return
    left = threading.Event()

    def preempted(value: bytes) -> None:
        if value == b"TRUE":
            _logger.warning("this machine is being preempted: saving")
            stop.received = signal.SIGTERM

    def maintained(value: bytes) -> None:
        if value == b"TERMINATE_ON_HOST_MAINTENANCE":
            _logger.warning("this machine is about to be stopped for maintenance: saving")
            stop.notices += 1

    for path, tell in (("preempted", preempted), ("maintenance-event", maintained)):
        arguments = (f"instance/{path}", tell, left)
        threading.Thread(target=_watch, args=arguments, daemon=True, name=path).start()
    try:
        yield
    finally:
        left.set()


def _watch(path: str, tell: Callable[[bytes], None], left: threading.Event) -> None:
    """Tells each value of a path that differs from the one before, until `left` is set."""
    metadata = Metadata()
    wait, before = "", b""  # the first answer is what is so already
    while not left.is_set():
        try:
            answer = metadata.get(path + wait, seconds=2.0 * _WAIT_SECONDS)
        except (OSError, http.client.HTTPException) as error:  # urllib's are OSErrors
            _logger.debug("the metadata server does not answer: %s", error)
            left.wait(_AGAIN_SECONDS)
            continue
        if answer.value != before and not left.is_set():
            tell(answer.value)
        before = answer.value
        wait = f"?wait_for_change=true&timeout_sec={_WAIT_SECONDS}"
        if answer.etag:  # else what changes between two requests is seen a minute later
            wait += f"&last_etag={answer.etag}"
