"""How processes are found, what they say when one fails; tests/e2e/test_processes.py runs some."""

import dataclasses
import re
import signal
import subprocess
import sys
import time

import pytest

from t5x_lite.checkpoints.init import Init
from t5x_lite.config import Experiment, Hosts
from t5x_lite.core.errors import InputError, Interrupted
from t5x_lite.data.config import Data
from t5x_lite.models.t5 import T5Config
from t5x_lite.objectives.likelihood import Seq2Seq
from t5x_lite.optim.config import Adafactor, Constant
from t5x_lite.train import hosts

MODEL = T5Config(
    vocab_size=512,
    d_model=8,
    d_kv=4,
    d_ff=8,
    num_heads=2,
    num_encoder_layers=1,
    num_decoder_layers=1,
)

SLURM = {
    "SLURM_JOB_ID": "1",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "2",
    "SLURM_STEP_NODELIST": "node[1-4]",
}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        (SLURM, "SLURM"),
        (SLURM | {"SLURM_NTASKS": "1"}, None),  # one task: all its devices stay visible
        ({"SLURM_JOB_ID": "1", "SLURM_NTASKS": "4"}, None),  # inside salloc, without srun
        (
            {
                "OMPI_COMM_WORLD_SIZE": "2",
                "OMPI_COMM_WORLD_RANK": "0",
                "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1:34911",
            },
            "Open MPI",
        ),
    ],
)
def test_the_launcher_is_known_by_its_variables(environment, expected, monkeypatch):
    monkeypatch.setattr(hosts, "has_tpu", lambda: False)
    assert hosts._launcher(environment) == expected


def test_a_tpu_is_asked_unless_it_is_not_used(monkeypatch):
    monkeypatch.setattr(hosts, "has_tpu", lambda: True)
    assert hosts._launcher({}) == "Cloud TPU"
    assert hosts._launcher({"JAX_PLATFORMS": "tpu,cpu"}) == "Cloud TPU"
    assert hosts._launcher({"JAX_PLATFORMS": "cpu"}) is None
    assert hosts._launcher(SLURM) == "SLURM"


def test_one_process_joins_nothing(monkeypatch):
    monkeypatch.setattr(hosts, "_launcher", lambda environment: None)

    def initialize(**arguments):
        raise AssertionError(arguments)

    monkeypatch.setattr(hosts.jax.distributed, "initialize", initialize)
    hosts.join(Hosts())


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (SLURM | {"SLURM_STEP_NUM_NODES": "4"}, []),  # one process a node has all of its GPUs
        (SLURM | {"SLURM_STEP_NUM_NODES": "1"}, None),  # four a node: JAX gives each its own
        (SLURM | {"SLURM_STEP_NUM_NODES": "1", "SLURM_GPUS_PER_TASK": "1"}, []),  # SLURM has
        ({}, None),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, []),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "8"}, None),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "1", "JAX_LOCAL_DEVICE_IDS": "0,1"}, None),
    ],
)
def test_a_process_has_all_gpus_that_are_its_own(environment, expected, monkeypatch):
    assert hosts._gpus(environment) == expected
    given = []
    monkeypatch.setattr(
        hosts.jax.distributed, "initialize", lambda **options: given.append(options)
    )
    monkeypatch.setattr(hosts, "_launcher", lambda environment: "SLURM")
    monkeypatch.setattr(hosts.os, "environ", environment)
    hosts.join(Hosts())
    hosts.join(Hosts(coordinator="a:1", num_processes=2, process_id=0))  # JAX looks there, too
    assert [options["local_device_ids"] for options in given] == [expected, expected]


JOINED = """
import logging, os, signal, socket, sys, time
import jax
from t5x_lite.config import Hosts
from t5x_lite.train import hosts

with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
os.environ |= {"SLURM_JOB_ID": "1", "SLURM_LOCALID": "0", "SLURM_STEP_NODELIST": "localhost",
               "SLURM_NTASKS": "1", "SLURM_PROCID": "0", "SLURM_STEP_NUM_NODES": "1",
               "JAX_COORDINATOR_PORT": str(port)}
hosts._launcher = lambda environment: "SLURM"
# JAX says there when it takes one GPU alone. Imports have made handlers already.
logging.basicConfig(level=logging.INFO, force=True)
hosts.join(Hosts())
print(jax.process_count(), flush=True)
with hosts.ending_together():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(20)
"""


@pytest.mark.multiprocess
@pytest.mark.slow
def test_jax_keeps_all_gpus_and_leaves_sigterm_alone():
    done = subprocess.run(
        [sys.executable, "-c", JOINED], capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "1\n", done.stderr
    assert "Connecting to JAX distributed service" in done.stderr
    assert "visible devices" not in done.stderr
    assert done.returncode == -signal.SIGTERM


@pytest.mark.exhaustive
def test_who_waits_in_vain_ends_by_one_line():
    program = (
        "from t5x_lite.config import Hosts; from t5x_lite.train import hosts\n"
        "hosts.join(Hosts(coordinator='127.0.0.1:9', num_processes=2, process_id=1, timeout=1))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1  # other hosts may come: --restarts tries again
    assert done.stderr.splitlines()[-1] == (
        "error: not all processes of this run connected within 1 s by 127.0.0.1:9; check "
        "--hosts.* and that the port can be reached"
    )


@pytest.mark.parametrize("code", [15, 2])
@pytest.mark.gate("15")
@pytest.mark.slow
def test_who_is_stopped_while_waiting_ends_at_once(code):
    program = (
        "import signal, threading, os\n"
        "from t5x_lite.config import Hosts; from t5x_lite.train import hosts\n"
        "signal.signal(signal.SIGTERM, lambda *arguments: None)  # as the command line has one\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # none in the background\n"
        "initialize = hosts.jax.distributed.initialize\n"
        "def stopped(**options):\n"
        f"    threading.Timer(0.5, os.kill, (os.getpid(), {code})).start()\n"
        "    initialize(**options)\n"
        "hosts.jax.distributed.initialize = stopped\n"
        "hosts.join(Hosts(coordinator='127.0.0.1:9', num_processes=2, process_id=1, timeout=600))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 128 + code, done.stderr
    assert (
        done.stderr.splitlines()[-1]
        == "error: stopped by a signal while connecting to the other processes"
    )


def test_what_jax_cannot_join_by_is_said(monkeypatch):
    def initialize(**arguments):
        assert arguments["coordinator_address"] is None
        raise error

    error = ValueError("coordinator_address should be defined.")
    monkeypatch.setattr(hosts.jax.distributed, "initialize", initialize)
    monkeypatch.setattr(hosts, "_launcher", lambda environment: "SLURM")
    with pytest.raises(
        InputError, match=r"could not connect to the others by the variables of SLURM \(coord"
    ):
        hosts.join(Hosts())
    # A worker of a slice never runs alone: JAX finds no cluster where libtpu is missing.
    monkeypatch.setattr(hosts, "_launcher", lambda environment: "Cloud TPU")
    monkeypatch.setattr(hosts, "_tpu_alone", lambda environment: "")
    with pytest.raises(InputError, match=r"coord.*; install the extra `tpu`"):
        hosts.join(Hosts())
    error = ConnectionError("reset by peer")  # not of the user's making: a restart is worth it
    with pytest.raises(
        RuntimeError, match=r"by the variables of Cloud TPU \(reset by peer\); check --hosts"
    ):
        hosts.join(Hosts())


@pytest.fixture
def pretended_tpu(monkeypatch):
    """A TPU that nothing says anything of; JAX must not be asked for other hosts."""

    def initialize(**arguments):
        raise AssertionError(arguments)

    for name in ("TPU_PROCESS_ADDRESSES", "TPU_WORKER_HOSTNAMES", "TPU_SKIP_MDS_QUERY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(hosts.jax.distributed, "initialize", initialize)
    monkeypatch.setattr(hosts, "_launcher", lambda environment: "Cloud TPU")


# An address that nobody has (RFC 5737), a port that nobody listens at, a name that does not exist.
@pytest.mark.parametrize("server", ["192.0.2.1", "127.0.0.1:9", "metadata.invalid"])
def test_without_a_metadata_server_a_tpu_is_one_process(server, pretended_tpu, monkeypatch, caplog):
    caplog.set_level("INFO", logger="t5x_lite")
    monkeypatch.setenv("GCE_METADATA_IP", server)
    monkeypatch.setattr(hosts, "on_google_cloud", lambda: False)
    began = time.monotonic()
    hosts.join(Hosts())
    assert time.monotonic() - began < 5
    assert "one process, because there is no metadata server that could name other" in caplog.text


@pytest.mark.parametrize("worker", [True, False])
def test_on_google_cloud_the_metadata_server_is_waited_for(worker, monkeypatch):
    reached, said = [False, False, True, True], [None, worker]
    monkeypatch.setattr(hosts, "on_google_cloud", lambda: True)
    monkeypatch.setattr(hosts, "is_reachable", lambda *, seconds: reached.pop(0))
    monkeypatch.setattr(hosts, "is_worker", lambda *, seconds: said.pop(0))
    monkeypatch.setattr(hosts.time, "sleep", lambda seconds: None)
    assert hosts._tpu_alone({}) == ("" if worker else "the metadata server reports no slice")
    assert reached == said == []


def test_on_google_cloud_nobody_is_alone_by_silence(pretended_tpu, monkeypatch):
    monkeypatch.setattr(hosts, "on_google_cloud", lambda: True)
    monkeypatch.setattr(hosts, "is_reachable", lambda *, seconds: False)
    monkeypatch.setattr(hosts, "_METADATA_PATIENCE", 0.0)
    with pytest.raises(
        RuntimeError, match="does not respond, so the number of TPU hosts is unknown"
    ):
        hosts.join(Hosts())


@pytest.mark.parametrize(
    ("environment", "alone"),
    [
        ({"TPU_PROCESS_ADDRESSES": "local"}, True),  # Kaggle
        ({"TPU_PROCESS_ADDRESSES": "local", "TPU_WORKER_HOSTNAMES": "a,b"}, True),
        ({"TPU_WORKER_HOSTNAMES": "localhost", "TPU_SKIP_MDS_QUERY": "1"}, True),  # GKE, one host
        ({"TPU_SKIP_MDS_QUERY": "1"}, True),
        ({"TPU_WORKER_HOSTNAMES": "a,b"}, False),
        ({"TPU_PROCESS_ADDRESSES": "localhost:8476,localhost:8477"}, False),
        ({"TPU_WORKER_HOSTNAMES": "localhost", "MEGASCALE_NUM_SLICES": "1"}, True),
        ({"TPU_WORKER_HOSTNAMES": "localhost", "MEGASCALE_NUM_SLICES": "2"}, False),
    ],
)
def test_variables_that_name_one_host_make_one_process(environment, alone, monkeypatch):
    monkeypatch.setattr(hosts, "is_reachable", None)  # it is not asked
    assert bool(hosts._tpu_alone(environment)) == alone


def test_a_host_of_a_slice_does_not_run_alone(pretended_tpu, monkeypatch):
    monkeypatch.setenv("TPU_PROCESS_ADDRESSES", "local")
    monkeypatch.setattr(hosts.jax, "process_count", lambda: 4)
    with pytest.raises(InputError, match=r"belongs to a slice of 4 hosts, .*set --hosts\.coord"):
        hosts.join(Hosts())


def test_an_error_of_one_process_is_raised_as_usual():
    with pytest.raises(KeyError), hosts.ending_together():
        raise KeyError("a")


ENDING = """
import sys
import jax
from t5x_lite.core.errors import InputError, Interrupted
from t5x_lite.train import hosts

from t5x_lite.core.signals import Terminated

jax.distributed.is_initialized = lambda: True
jax.process_count = lambda: 4
jax.process_index = lambda: 2
with hosts.ending_together(OverflowError):
    try:
        raise eval(sys.argv[1])
    finally:
        print("unwound")
"""


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        ("InputError('no such\\nfile')", 2, "error: process 2 of 4: no such file"),
        ("KeyboardInterrupt()", 130, "error: process 2 of 4: interrupted"),
        ("Terminated()", 143, "error: process 2 of 4: terminated"),
        ("KeyError('a')", 1, "error: process 2 of 4: KeyError: 'a'"),
        (
            "ValueError('UNKNOWN: Gloo all-reduce failed: Connection reset by peer')",
            1,
            "error: process 2 of 4: another process of this run has failed or cannot be reached; "
            "see its messages; the last checkpoint is kept (UNKNOWN: Gloo all-reduce failed: "
            "Connection reset by peer)",
        ),
        ("OverflowError('agreed')", 1, "OverflowError: agreed"),
    ],
)
@pytest.mark.gate(
    "InputError('no such\\\\nfile')-2-error: process 2 of 4: no such file",
    "OverflowError('agreed')-1-OverflowError: agreed",
)
@pytest.mark.slow
def test_several_processes_end_by_one_line(error, code, said):
    done = subprocess.run(
        [sys.executable, "-c", ENDING, error], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (code, "unwound\n")
    assert done.stderr.splitlines()[-1] == said
    assert ("Traceback" in done.stderr) == (said.startswith("Over") or "KeyError" in said)


def test_what_all_processes_agree_on_passes(monkeypatch):
    monkeypatch.setattr(hosts.jax.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(hosts.jax, "process_count", lambda: 2)
    for error in (Interrupted(15, 3), SystemExit(0), FloatingPointError()):
        with pytest.raises(type(error)), hosts.ending_together(FloatingPointError):
            raise error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("UNKNOWN: Gloo all-reduce failed: Read error"), True),
        (RuntimeError("INTERNAL: Task 1 heartbeat timeout"), True),
        (RuntimeError("UNAVAILABLE: Failed to send RPC to coordination service"), True),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory"), False),
        (ValueError("the evaluation split yields no batch"), False),
        (KeyError("gloo"), False),
    ],
)
def test_lost_hosts_are_known_by_what_jax_says(error, expected):
    assert hosts.is_lost_host(error) == expected


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"optimizer": Adafactor(schedule=Constant(value=0.1))}, "optimizer.schedule.value"),
        ({"model": dataclasses.replace(MODEL, d_model=16)}, "model.d_model"),
        ({"seed": 7}, "seed"),
        ({"steps": 11}, "steps"),
        ({"vocabulary": "another"}, "vocabulary"),
        ({"directory": "other"}, "bytes in data.directory.b.txt"),
        ({"directory": "edited"}, "content of data.directory.b.txt"),
        ({"directory": "edited/b.txt"}, "content of data.directory.b.txt"),
        ({"directory": "edited/*.txt"}, "content of data.directory.b.txt"),
        ({"init": Init(checkpoint="initial")}, "checkpoints in init.checkpoint.."),
    ],
)
def test_processes_that_differ_all_end_with_what_differs(change, expected, monkeypatch, tmp_path):
    for name, content in (("own", "xxx"), ("same", "xxx"), ("other", "xxxx"), ("edited", "xyx")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "b.txt").write_text(content)
    monkeypatch.chdir(tmp_path)
    told = []
    monkeypatch.setattr(hosts.jax, "process_count", lambda: 3)
    monkeypatch.setattr(hosts.jax, "process_index", lambda: 2)
    monkeypatch.setattr(hosts, "all_told", lambda text: told.append(text) or told)

    def check(*, directory="own", vocabulary="one", **fields):
        data = Data(
            task="tasks.text:prefix_lm", directory=str(tmp_path / directory), vocabulary="bytes"
        )
        base = {
            "model": MODEL,
            "objective": Seq2Seq(),
            "optimizer": Adafactor(schedule=Constant(value=0.01)),
            "steps": 10,
            "hosts": Hosts(coordinator="host:1", num_processes=3, process_id=len(told)),
        }
        experiment = Experiment(data=data, **{**base, **fields})
        hosts.check_agreement(experiment, vocabulary=vocabulary)

    if "init" in change:  # each machine has its own directory of this name
        (tmp_path / "initial").mkdir()
        (tmp_path / "initial" / "manifest.json").write_text("{}")
        check(**change)
        check(**change)
        (tmp_path / "initial" / "manifest.json").write_text('{"step": 1}')
    else:
        check()
        check(directory="same")  # the place may differ, what is there may not
    with pytest.raises(
        InputError, match=re.escape(f"processes 0 and 2 of this run differ in {expected} (")
    ) as refused:
        check(**change)
    assert ("a copy on each host" in str(refused.value)) == (
        "directory" in change or "init" in change
    )
