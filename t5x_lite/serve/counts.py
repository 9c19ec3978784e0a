"""What a server counts, in the text format of Prometheus."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_ROWS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)


class Counts:
    """The numbers of one server.

    Args:
      num_waiting: texts in the queue now.
      is_ready: whether each endpoint has a program.
    """

    def __init__(self, *, num_waiting: Callable[[], int], is_ready: Callable[[], bool]):
        self._registry = CollectorRegistry()
        self._requests = self._counter("requests", "Requests answered.", "endpoint", "status")
        self._texts = self._counter("texts", "Texts that went through the model.", "endpoint")
        self._padding = self._counter(
            "padding_rows", "Rows of batches that held no text.", "endpoint"
        )
        self._latency = self._histogram(
            "request_seconds", "From a request's headers to its answer.", _SECONDS
        )
        self._batch_rows = self._histogram("batch_rows", "Texts of a batch.", _ROWS)
        self._batch_seconds = self._histogram(
            "batch_seconds", "A batch on the device, with its tokens made text.", _SECONDS
        )
        self._gauge("queue_texts", "Texts that wait.", num_waiting)
        self._gauge("ready", "1 when each endpoint answers.", is_ready)

    def request(self, endpoint: str, *, status: int, seconds: float) -> None:
        """Counts an answer."""
        self._requests.labels(endpoint, str(status)).inc()
        if status == 200:
            self._latency.labels(endpoint).observe(seconds)

    def batch(self, kind: str, *, rows: int, size: int, seconds: float) -> None:
        """Counts a batch; see `batching.Observer`."""
        self._texts.labels(kind).inc(rows)
        self._padding.labels(kind).inc(size - rows)
        self._batch_rows.labels(kind).observe(rows)
        self._batch_seconds.labels(kind).observe(seconds)

    def text(self) -> bytes:
        """The page that Prometheus reads."""
        return generate_latest(self._registry)

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        return Counter(f"t5x_lite_{name}", about, labels, registry=self._registry)

    def _histogram(self, name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(
            f"t5x_lite_{name}", about, ("endpoint",), buckets=buckets, registry=self._registry
        )

    def _gauge(self, name: str, about: str, function: Callable[[], float]) -> None:
        gauge = Gauge(f"t5x_lite_{name}", about, registry=self._registry)
        gauge.set_function(lambda: float(function()))
