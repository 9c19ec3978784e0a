"""Google Cloud's metadata server, which tells a machine about itself.

    on_google_cloud()                               # False elsewhere; the network is not asked
    Metadata().get("instance/preempted")            # Answer(b"FALSE", etag="2a1c...")

Paths and headers are those of "About VM metadata" in the Compute Engine documentation.
"""

import dataclasses
import http.client
import os
import socket
import threading
import urllib.error
import urllib.request
from pathlib import Path

_PRODUCT = Path("/sys/class/dmi/id/product_name")
_NAME = "metadata.google.internal"
_PORT = 80


@dataclasses.dataclass(frozen=True)
class Answer:
    """A value, and the mark by which the server knows whether it has changed since.

    Attributes:
      value: without white space around it.
      etag: "" where the server gives none.
    """

    value: bytes
    etag: str


class Metadata:
    """The server of this machine, or that of the variable GCE_METADATA_HOST, or a given one."""

    def __init__(self, host: str | None = None) -> None:
        self._host = host or os.environ.get("GCE_METADATA_HOST", _NAME)
        # Not through a proxy, which the environment may name for the rest of the network.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get(self, path: str, *, seconds: float) -> Answer:
        """The value at a path below computeMetadata/v1/.

        Args:
          path: such as instance/preempted, with its query.
          seconds: after which the server is given up.

        Raises:
          OSError: it does not answer, or with an error.
        """
        request = urllib.request.Request(
            f"http://{self._host}/computeMetadata/v1/{path}", headers={"Metadata-Flavor": "Google"}
        )
        with self._opener.open(request, timeout=seconds) as answer:
            return Answer(answer.read().strip(), answer.headers.get("ETag", ""))


def on_google_cloud(product: Path = _PRODUCT) -> bool:
    """Whether this is a VM of Google Cloud; the network is not asked."""
    try:
        return product.read_text().strip() == "Google Compute Engine"
    except OSError:
        return False


def is_worker(*, seconds: float) -> bool | None:
    """Whether the server that JAX asks says that this machine is a worker of a TPU slice.

    Args:
      seconds: after which the server is given up.

    Returns:
      None where it does not answer, or not by yes or no.
    """
    try:
        Metadata(_asked_by_jax()).get("instance/attributes/agent-worker-number", seconds=seconds)
    except urllib.error.HTTPError as error:
        return False if error.code == http.HTTPStatus.NOT_FOUND else None
    except (OSError, http.client.HTTPException):
        return None
    return True


def _asked_by_jax() -> str:
    return os.environ.get("GCE_METADATA_IP", _NAME)


def is_reachable(*, seconds: float) -> bool:
    """Whether a connection to the server that JAX asks can be made within some seconds."""
    # Looking a name up has no time limit, so that a thread waits for it.
    host, _, port = _asked_by_jax().partition(":")
    connected = threading.Event()

    def connect() -> None:
        try:
            socket.create_connection((host, int(port or _PORT)), timeout=seconds).close()
        except OSError:
            return
        connected.set()

    thread = threading.Thread(target=connect, daemon=True, name="metadata")
    thread.start()
    thread.join(seconds)
    return connected.is_set()
