"""Processes of a run on several hosts, and the metadata server of Google Cloud.

    hosts.join(experiment.hosts)      # before JAX is used
    with hosts.ending_together():
        ...                           # an error here ends this process, and then the others

With a single process, which is the usual case, both functions do nothing.

Google Cloud's metadata server describes the machine:

    on_google_cloud()                               # False elsewhere; needs no network
    Metadata().get("instance/preempted")            # Answer(b"FALSE", etag="2a1c...")

Paths and headers are from "About VM metadata" in the Compute Engine documentation.
"""

import contextlib
import dataclasses
import glob
import http.client
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from t5x_lite.config import Experiment, Hosts
from t5x_lite.config.experiment import unequal
from t5x_lite.config.file import encode
from t5x_lite.core import remote
from t5x_lite.core.accelerators import has_tpu, quiet_without_tpu
from t5x_lite.core.errors import InputError, Interrupted, line_of_file
from t5x_lite.core.sharding import all_told
from t5x_lite.core.signals import SIGNALS, Terminated, leave_terminal, line_of

_logger = logging.getLogger(__name__)

_PRODUCT = Path("/sys/class/dmi/id/product_name")
_NAME = "metadata.google.internal"
_PORT = 80


@dataclasses.dataclass(frozen=True)
class Answer:
    """Response of Google Cloud's metadata server to a request.

    Attributes:
      value: content without surrounding white space.
      etag: version of the value, for requests that wait for a change; "" if the server sends none.
    """

    value: bytes
    etag: str


class Metadata:
    """Client of Google Cloud's metadata server."""

    def __init__(self, host: str | None = None) -> None:
        self._host = host or os.environ.get("GCE_METADATA_HOST", _NAME)
        # Bypasses proxies, which the environment may set for the rest of the network.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get(self, path: str, *, seconds: float) -> Answer:
        """Request a value by its path below computeMetadata/v1/ of the metadata server."""
        request = urllib.request.Request(
            f"http://{self._host}/computeMetadata/v1/{path}", headers={"Metadata-Flavor": "Google"}
        )
        with self._opener.open(request, timeout=seconds) as answer:
            return Answer(answer.read().strip(), answer.headers.get("ETag", ""))


def on_google_cloud(product: Path = _PRODUCT) -> bool:
    """Return True if this machine is a VM of Google Cloud; needs no network."""
    try:
        return product.read_text().strip() == "Google Compute Engine"
    except OSError:
        return False


def is_worker(*, seconds: float) -> bool | None:
    """Return True if this machine is a TPU slice's worker; None if no metadata server responds."""
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
    """Return True if the metadata server that JAX uses accepts a connection within `seconds`."""
    # Name resolution has no timeout, so it runs in a thread.
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


_LAUNCHERS = {
    "SLURM": ("SLURM_NTASKS", "SLURM_PROCID", "SLURM_STEP_NODELIST"),
    "Open MPI": ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_MCA_orte_hnp_uri"),
}
"""Launcher -> environment variables with the number of processes, the rank of this process and the
addresses of the other processes."""

_REMEDY = "check --hosts.* and that the port can be reached"

_GRACE_SECONDS = 15

_METADATA_SECONDS = 2.0
"""Timeout of a request to the metadata server, in seconds."""
_METADATA_PATIENCE = 60.0
"""Maximum time of retries on Google Cloud, where the metadata server must exist, in seconds."""

_PEER_FAILED = (
    "gloo",
    "nccl",
    "heartbeat",
    "coordination service",
    "coordinationservice",
    "connection reset by peer",
    "connection closed by peer",
    "socket closed",
)
"""Lower-case words in the errors that JAX raises after another process has ended."""


def join(hosts: Hosts) -> None:
    """Connect the processes of a distributed run, and start JAX's devices."""
    _join(hosts)
    failed = f"the devices of this host did not start within {hosts.timeout} s"
    with quiet_without_tpu(), _giving_up(hosts.timeout, failed):
        jax.local_devices()  # starts JAX's backends
    if jax.process_count() > 1 and not jax.distributed.is_initialized():
        raise InputError(
            f"this host's TPU belongs to a slice of {jax.process_count()} hosts, but the addresses "
            "of the other hosts are unknown; set --hosts.coordinator, --hosts.num-processes and "
            "--hosts.process-id"
        )


def _join(hosts: Hosts) -> None:
    if jax.distributed.is_initialized():
        return
    launcher = None if hosts.coordinator else _launcher(os.environ)
    if not hosts.coordinator and launcher is None:
        return
    if launcher == "Cloud TPU" and (reason := _tpu_alone(os.environ)):
        _logger.info("training in one process, because %s", reason)
        return
    # On CPU, collectives between processes run over TCP.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # The service would take SIGTERM away from Python. Training agrees on the last step itself
    # (train/stopping.py), and no other command would end on SIGTERM.
    jax.config.update("jax_enable_preemption_service", False)
    where = hosts.coordinator or f"the variables of {launcher}"
    failed = f"not all processes of this run connected within {hosts.timeout} s by {where}"
    try:
        with _giving_up(hosts.timeout, failed), _ended_by_signals():
            jax.distributed.initialize(
                coordinator_address=hosts.coordinator or None,
                num_processes=hosts.num_processes,
                process_id=hosts.process_id,
                local_device_ids=_gpus(os.environ),
                initialization_timeout=hosts.timeout + _GRACE_SECONDS,
                heartbeat_timeout_seconds=hosts.heartbeat,
            )
    except Exception as error:
        said = f"this process could not connect to the others by {where} ({_first_line(error)})"
        if launcher == "Cloud TPU" and isinstance(error, ValueError):
            raise InputError(
                f"cannot connect the processes on Cloud TPU: {said}; install the extra `tpu`"
            ) from error
        if isinstance(error, ValueError) or "must be called before" in str(error):
            raise InputError(f"{said}; {_REMEDY}") from error
        raise RuntimeError(f"{said}; {_REMEDY}") from error
    _logger.info(
        "connected process %d of %d (method: %s)",
        jax.process_index(),
        jax.process_count(),
        where,
    )


@contextlib.contextmanager
def _giving_up(seconds: int, failed: str) -> Iterator[None]:
    """End this process with exit code 1 if the `with` block takes longer than `seconds`.

    Exit code 1 lets a supervisor restart this process.
    """

    def end() -> None:
        print(f"error: {failed}; {_REMEDY}", file=sys.stderr, flush=True)
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """End this process at once if a signal arrives within the `with` block.

    Python's own signal handlers would only run after JAX's connection attempt in C++.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received, sent = socket.socketpair()
    sent.setblocking(False)

    def wait() -> None:
        with received:
            while number := received.recv(1):
                if number[0] in SIGNALS:
                    leave_terminal(number[0])
                    print(
                        "error: stopped by a signal while connecting to the other processes",
                        file=sys.stderr,
                        flush=True,
                    )
                    os._exit(128 + number[0])

    threading.Thread(target=wait, daemon=True, name="signals").start()
    with sent:  # closing it ends the thread
        before = signal.set_wakeup_fd(sent.fileno())
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)


def _launcher(environment: Mapping[str, str]) -> str | None:
    """Return the launcher that started this process, such as SLURM; None for a single process."""
    for name, variables in _LAUNCHERS.items():
        size = environment.get(variables[0], "1")
        if all(variable in environment for variable in variables) and size != "1":
            return name
    platforms = environment.get("JAX_PLATFORMS", "")
    return "Cloud TPU" if "tpu" in (platforms or "tpu") and has_tpu() else None


def _tpu_alone(environment: Mapping[str, str]) -> str:
    """Return the reason that this host is the only TPU host, or "" if there may be several.

    A worker that wrongly runs by itself would overwrite the checkpoints of its TPU slice. So on
    Google Cloud, the metadata server must confirm a single host, unless environment variables name
    the hosts.
    """
    for name in ("TPU_PROCESS_ADDRESSES", "TPU_WORKER_HOSTNAMES"):
        workers = environment.get(name)
        if workers is not None:  # JAX uses the first variable that is set
            slices = environment.get("MEGASCALE_NUM_SLICES") or "1"
            alone = "," not in workers and slices == "1"
            return f"{name} names only this host ({workers!r})" if alone else ""
    if "TPU_SKIP_MDS_QUERY" in environment:
        return "TPU_SKIP_MDS_QUERY is set, and no variable names other hosts"
    cloud = on_google_cloud()
    until = time.monotonic() + _METADATA_PATIENCE
    while True:
        reachable = is_reachable(seconds=_METADATA_SECONDS)
        if not (reachable or cloud):
            return "there is no metadata server that could name other hosts"
        worker = is_worker(seconds=_METADATA_SECONDS) if reachable else None
        if worker is not None:
            return "" if worker else "the metadata server reports no slice"
        if time.monotonic() >= until:
            raise RuntimeError(
                "the metadata server does not respond, so the number of TPU hosts is unknown; "
                "for a single host, set TPU_PROCESS_ADDRESSES=local"
            )
        time.sleep(1)


def _gpus(environment: Mapping[str, str]) -> list[int] | None:
    """Return the indices of this process's GPUs; [] for all visible GPUs, None for JAX's default.

    Under SLURM and Open MPI, JAX assigns the GPU of the local rank. That is wrong if a node has one
    process, or if each process only sees its own GPUs.
    """
    if "JAX_LOCAL_DEVICE_IDS" in environment:
        return None
    alone = environment.get("OMPI_COMM_WORLD_LOCAL_SIZE") == "1"
    nodes = environment.get("SLURM_STEP_NUM_NODES")
    alone |= nodes is not None and environment.get("SLURM_NTASKS") == nodes
    bound = any(name in environment for name in ("SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK"))
    return [] if alone or bound else None


@contextlib.contextmanager
def ending_together(*agreed: type[BaseException]) -> Iterator[None]:
    """End this process at once if the `with` block fails in a run of several processes.

    Normal cleanup would wait for the other processes, which wait for this process. The other
    processes end when they lose the connection: on CPU at once, elsewhere after hosts.heartbeat
    seconds.

    Args:
      *agreed: exceptions that all processes raise at the same time; they are raised as usual.
    """
    try:
        yield
    except (Interrupted, SystemExit, *agreed):
        raise
    except BaseException as error:
        if jax.distributed.is_initialized() and jax.process_count() > 1:
            _end(error)
        raise


def _end(error: BaseException) -> None:
    index, count = jax.process_index(), jax.process_count()
    who = f"process {index} of {count}"
    if isinstance(error, InputError):
        code, line = 2, f"{who}: {' '.join(str(error).split())}"
    elif (of_file := line_of_file(error)) is not None:
        code, line = 2, f"{who}: {of_file}"
    elif isinstance(error, KeyboardInterrupt):
        signum = error.signum if isinstance(error, Terminated) else signal.SIGINT
        code, line = 128 + signum, f"{who}: {line_of(signum).removeprefix('error: ')}"
    elif is_lost_host(error):
        code = 1
        line = (
            f"{who}: another process of this run has failed or cannot be reached; see its "
            f"messages; the last checkpoint is kept ({_first_line(error)})"
        )
    else:
        traceback.print_exception(error)
        code, line = 1, f"{who}: {type(error).__name__}: {_first_line(error)}"
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        print(f"error: {line}", file=sys.stderr, flush=True)
    os._exit(code)


def check_agreement(experiment: Experiment, **facts: object) -> None:
    """Raise InputError on all processes if their configs or data files differ.

    Different settings could train different models without an error, or make processes wait
    forever. Local paths of data may differ.

    Args:
      experiment: config of this process.
      **facts: further JSON values that must be equal on all processes.
    """
    if jax.process_count() == 1:
        return
    config = encode(dataclasses.replace(experiment, hosts=Hosts()), where="experiment")
    for name in _OWN_FIELDS:
        config.pop(name, None)
    for name in _OWN_DATA_FIELDS:
        config["data"].pop(name, None)
    local = jax.local_device_count()
    files = _files_of(experiment.data.directory)
    mine: dict[str, Any] = {
        **config,
        _FILES: {name: remote.size_of(path) for name, path in files.items()},
        _CONTENT: _samples(files),
        _INIT: _manifest_of(experiment.init.checkpoint),
        **facts,
    }
    texts = all_told(json.dumps({**mine, "devices of a process": local}))
    other = next((i for i, text in enumerate(texts) if text != texts[0]), None)
    if other is None:
        return
    differing = unequal(json.loads(texts[0]), json.loads(texts[other]))
    listed = "; ".join(differing[:3]) + (f"; and {n} more" if (n := len(differing) - 3) > 0 else "")
    if jax.process_index() == 0:
        time.sleep(1)  # if it ended first, it would abort the others before they print their line
    remedy = "start all processes with the same config, options and files"
    if any(what in one for one in differing for what in (_FILES, _CONTENT, _INIT)):
        remedy += "; each process needs all files: a shared disk, a bucket, or a copy on each host"
    raise InputError(f"processes 0 and {other} of this run differ in {listed}; {remedy}")


_FILES = "bytes in data.directory"
_CONTENT = "content of data.directory"
_INIT = "checkpoints in init.checkpoint"
_SAMPLED_FILES, _SAMPLED_BYTES = 256, 1 << 15
_OWN_FIELDS = ("compilation_cache", "tracking")
_OWN_DATA_FIELDS = ("directory", "cache", "vocabulary")


def _files_of(place: str) -> dict[str, Path]:
    root = Path(place)
    if not place or remote.is_remote(place):
        return {}
    if root.is_dir():
        names = [name for name in sorted(remote.files_below(root)) if not name.startswith(".")]
        return {name: root / name for name in names}
    found = [root] if root.is_file() else [Path(path) for path in sorted(glob.glob(place))]
    return {path.name: path for path in found if path.is_file()}


def _samples(files: Mapping[str, Path]) -> dict[str, str]:
    """Return file name -> checksum of its beginning, middle and end, for a sample of the files."""
    names, found = list(files), {}
    for name in names[:: max(1, len(names) // _SAMPLED_FILES)]:
        checksum = 0
        with contextlib.suppress(OSError), files[name].open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            for place in (0, size // 2, max(0, size - _SAMPLED_BYTES)):
                file.seek(place)
                checksum = zlib.crc32(file.read(_SAMPLED_BYTES), checksum)
        found[name] = f"{checksum:08x}"
    return found


def _manifest_of(checkpoint: str) -> dict[str, str]:
    root = Path(checkpoint)
    if not checkpoint or remote.is_remote(checkpoint):
        return {}
    paths = [root / "manifest.json", *sorted(root.glob("checkpoints/*/manifest.json"))]
    return {
        str(path.parent.relative_to(root)): f"{zlib.crc32(path.read_bytes()):08x}"
        for path in paths
        if path.is_file()
    }


def is_lost_host(error: BaseException) -> bool:
    """Return True if an error means that another process has ended."""
    text = str(error).lower()
    # Gloo's errors come as ValueError, XLA's as RuntimeError.
    return isinstance(error, ValueError | RuntimeError) and any(p in text for p in _PEER_FAILED)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
