"""scripts/tpu/launch.sh with a gcloud that runs a worker's command on this machine."""

import os
import re
import shlex
import shutil
import subprocess

import pytest

from tests.docs.commands import ROOT, blocks
from tests.waiting import wait_until

TPU = ROOT / "scripts" / "tpu"

GCLOUD = """#!/bin/bash
# `states` has a line for each `describe`, of which the last one stays; NONE is not found.
echo "$@" >> "$WORKER_HOME/calls"
case "$4" in
  describe)
    read -r state < "$WORKER_HOME/states" || state=ACTIVE
    [[ $(wc -l < "$WORKER_HOME/states") -lt 2 ]] || sed -i 1d "$WORKER_HOME/states"
    case "$state" in
      NONE) echo 'ERROR: (gcloud.describe) NOT_FOUND: not there.' >&2; exit 1 ;;
      ERROR*) printf 'WARNING: old\\n%s\\nRun it again.\\n' "$state" >&2; exit 1 ;;
    esac
    echo "$state" ;;
  delete) echo NONE > "$WORKER_HOME/states" ;;
  create) printf 'PROVISIONING\\nACTIVE\\n' > "$WORKER_HOME/states" ;;
esac
for argument in "$@"; do
  case "$argument" in --command=*) cd "$WORKER_HOME"; exec bash -c "${argument#--command=}" ;; esac
done
"""

TRAINING = """#!/bin/bash
trap 'echo saved; exit 143' TERM
printf '<%s>' "$@"
while true; do sleep 0.05; done
"""


@pytest.fixture
def launch(tmp_path, monkeypatch):
    """Runs the script; the worker's home is tmp_path / "worker"."""
    home = tmp_path / "worker"
    for path, text in (("bin/gcloud", GCLOUD), ("worker/t5x_lite-venv/bin/t5x-lite", TRAINING)):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(text)
        (tmp_path / path).chmod(0o755)
    (home / "t5x_lite" / "scripts" / "tpu").mkdir(parents=True)
    (home / "states").write_text("ACTIVE\n")
    shutil.copy(TPU / "worker.sh", home / "t5x_lite" / "scripts" / "tpu")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("WORKER_HOME", str(home))

    def run(*arguments, **environment):
        return subprocess.run(
            [str(TPU / "launch.sh"), *arguments],
            env={**os.environ, "TPU": "slice", "ZONE": "zone", "POLL": "0.05", **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )

    yield run
    run("stop")


def test_a_run_starts_once_and_is_stopped_by_a_signal(launch, tmp_path):
    log = tmp_path / "worker" / "t5x_lite-train.log"
    assert "no run" in launch("status").stdout
    started = launch("train", "a config.py", "--workdir", "gs://b/x y")
    assert started.returncode == 0, started.stderr
    again = launch("train", "configs/tiny_pretrain.py", "--workdir", "gs://b/w")
    assert again.returncode == 1
    assert again.stderr == "a run goes on already: stop it first\n"
    assert "a run goes on" in launch("status").stdout
    assert launch("stop").returncode == 0
    wait_until(lambda: "saved" in log.read_text())
    assert log.read_text() == "<train><a config.py><--workdir><gs://b/x y>saved\n"
    calls = called(tmp_path)
    assert calls[0] == "compute tpus tpu-vm describe slice --zone=zone --format=value(state)"
    assert calls[1].startswith("compute tpus tpu-vm ssh slice --zone=zone --worker=all --command=")


def called(tmp_path):
    """The words of each call of gcloud."""
    return (tmp_path / "worker" / "calls").read_text().splitlines()


WORKER = "bash t5x_lite/scripts/tpu/worker.sh"
ONE = ["--zone=zone", "--worker=all"]
QUEUED = ["--zone=zone", "--node=all", "--worker=all"]


def shown(launch, *arguments, **environment):
    """The words of each line that DRY_RUN=1 prints."""
    done = launch(*arguments, DRY_RUN="1", **environment)
    assert done.returncode == 0, done.stderr
    words = [shlex.split(line) for line in done.stdout.splitlines()]
    assert all(line[:3] == ["gcloud", "compute", "tpus"] for line in words)
    return [line[3:] for line in words]


def test_what_would_be_run(launch, tmp_path):
    shown_by_stop = launch("stop", DRY_RUN="1", PROJECT="mine").stdout
    head = ["gcloud", "compute", "tpus", "tpu-vm", "ssh", "slice", "--zone=zone", "--project=mine"]
    assert shlex.split(shown_by_stop)[: len(head)] == head
    assert not (tmp_path / "worker" / "calls").exists()


@pytest.mark.parametrize(
    ("environment", "kind", "where"),
    [
        ({}, ["tpu-vm", "slice"], ONE),
        ({"QR": "queue"}, ["queued-resources", "queue"], QUEUED),
    ],
)
def test_setup_copies_and_installs(launch, environment, kind, where):
    environment |= {"EXTRAS": "tpu,data", "PYTHON": "/a b/python3.12"}
    copied, installed = shown(launch, "setup", **environment)
    assert copied[:2] == [kind[0], "scp"]
    assert copied[3:] == [f"{kind[1]}:t5x_lite.tar.gz", *where]
    assert installed[:-1] == [kind[0], "ssh", kind[1], *where]
    assert installed[-1] == (
        "--command=rm -rf t5x_lite.new && mkdir t5x_lite.new"
        " && tar -xzf t5x_lite.tar.gz -C t5x_lite.new"
        r" && PYTHON=/a\ b/python3.12 bash t5x_lite.new/scripts/tpu/worker.sh setup tpu,data"
    )


def test_train_of_a_slice(launch):
    (words,) = shown(launch, "train", "a.py", "--workdir", "gs://b/x y")
    command = rf"--command=RESTART_WAIT=120 {WORKER} train 0 a.py --workdir gs://b/x\ y "
    assert words == ["tpu-vm", "ssh", "slice", *ONE, command]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--restarts", "20", "a.py", "--seed", "1"),
        ("--restarts=20", "a.py", "--seed", "1"),
        ("a.py", "--seed", "1", "--restarts", "20"),
    ],
)
def test_restarts(launch, arguments):
    (words,) = shown(launch, "train", *arguments, RESTART_WAIT="400")
    assert words[-1] == f"--command=RESTART_WAIT=400 {WORKER} train 20 a.py --seed 1 "


def test_one_queued_slice(launch):
    environment = {"QR": "queue", "PROJECT": "mine"}
    (made,) = shown(launch, "create", "--spot", ACCELERATOR="v6e-16", **environment)
    where = ["--zone=zone", "--project=mine"]
    assert made == [
        *("queued-resources", "create", "queue", *where),
        *("--accelerator-type=v6e-16", "--runtime-version=v2-alpha-tpuv6e"),
        *("--node-id=queue", "--spot"),
    ]
    (asked,) = shown(launch, "describe", **environment)
    assert asked == ["queued-resources", "describe", "queue", *where, "--format=value(state.state)"]


@pytest.mark.parametrize(
    ("accelerator", "runtime"),
    [
        ("v5litepod-16", "v2-alpha-tpuv5-lite"),
        ("v5p-128", "v2-alpha-tpuv5"),
        ("v4-32", "tpu-ubuntu2204-base"),
    ],
)
def test_two_slices(launch, accelerator, runtime):
    (made,) = shown(launch, "create", QR="queue", SLICES="2", ACCELERATOR=accelerator)
    assert made[4:] == [
        *(f"--accelerator-type={accelerator}", f"--runtime-version={runtime}"),
        *("--node-count=2", "--node-prefix=queue"),
    ]
    (trained,) = shown(launch, "train", "a.py", "--mesh.replica", "2", QR="queue")
    assert trained[:-1] == ["queued-resources", "ssh", "queue", *QUEUED]
    assert trained[-1].endswith(" train 0 a.py --mesh.replica 2 ")
    (stopped,) = shown(launch, "stop", QR="queue")
    assert stopped[3:] == [*QUEUED, f"--command={WORKER} stop"]
    state, asked = shown(launch, "status", QR="queue")
    assert state[1] == "describe"
    assert asked[3:] == [*QUEUED, f"--command={WORKER} status"]
    (logs,) = shown(launch, "logs", QR="queue", NODE="1", WORKER="3")
    assert logs[3:6] == ["--zone=zone", "--node=1", "--worker=3"]


ALONE = ("describe", "setup", "logs", "status", "stop")


@pytest.mark.parametrize(
    ("arguments", "code", "stream"),
    [([], 2, "stderr"), (["-h"], 0, "stdout"), (["--help"], 0, "stdout"), (["help"], 0, "stdout")],
)
def test_usage(launch, arguments, code, stream):
    done = launch(*arguments, TPU="", ZONE="")
    assert done.returncode == code
    shown = {name: getattr(done, name) for name in ("stdout", "stderr")}
    assert "export TPU=NAME ZONE=us-west4-a" in shown.pop(stream)
    assert list(shown.values()) == [""]


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (["stop"], {"ZONE": ""}, "set ZONE to the zone of the slice"),
        (["stop"], {"TPU": ""}, "set TPU to the name of the slice, or QR"),
        (["create"], {}, "set QR to the name of one"),
        (["describe"], {}, "set QR to the name of one"),
        (["restart", "train", "a.py"], {}, "set QR to the name of one"),
        (["create"], {"QR": "queue"}, "set ACCELERATOR to the type of a slice"),
        (["restart", "train", "a.py"], {"QR": "queue"}, "set ACCELERATOR to the type of a slice"),
        (
            ["restart", "--spot"],
            {"QR": "queue", "ACCELERATOR": "v4-8"},
            "restart needs the command",
        ),
        (["run"], {}, "run needs a command of t5x-lite"),
        (["run", "--restarts", "3"], {}, "run needs a command of t5x-lite"),
        (["run", "t5x-lite"], {}, "run needs a command of t5x-lite"),
        (["run", "--restarts", "x", "predict"], {}, "--restarts needs a whole number, got 'x'"),
        (["copy"], {}, "copy needs files and a destination"),
        (["copy", "a"], {}, "copy needs files and a destination"),
        (["copy", "missing.txt", ":"], {}, "no file or directory missing.txt; check the path"),
        (["copy", "a", "b"], {}, "copy needs one side on the workers, written as :PATH"),
        (["copy", ":a", ":b"], {}, "copy needs one side on the workers, written as :PATH"),
        (["copy", ":a", "b", "c"], {}, "copy needs one side on the workers, written as :PATH"),
        (["copy", "gs://b/c4", ":"], {}, "gs://b/c4 is in a bucket, which every worker reads"),
        (["delete", "--now"], {}, "delete does not take --now"),
        (["train"], {}, "train needs a config; for example: launch.sh train CONFIG"),
        (["train", "--restarts", "20"], {}, "train needs a config"),
        (["train", "a.py", "--restarts"], {}, "--restarts needs a whole number, got ''"),
        (["train", "--restarts", "many", "a.py"], {}, "needs a whole number, got 'many'"),
        (["train", "a.py", "--restart", "20"], {}, "did you mean --restarts?"),
        (["train", "--workdir", "gs://b/x"], {}, "a config before its options, got --workdir"),
        (["create"], {"QR": "q", "ACCELERATOR": "v5e:4x4"}, "v5e:4x4, a name of t5x-lite plan"),
        (["create"], {"QR": "q", "ACCELERATOR": "v5litepod-17"}, "the sizes of v5litepod are 1, 4"),
        (["create"], {"QR": "q", "ACCELERATOR": "v4-8", "SLICES": "x"}, "SLICES is x; set it to"),
        *(([word, "now"], {"QR": "q"}, f"{word} takes no arguments, got now") for word in ALONE),
        (["fly"], {}, "no command fly; the commands are create, describe, setup, train"),
    ],
)
def test_wrong_usage_in_one_line(launch, tmp_path, arguments, environment, message):
    done = launch(*arguments, **environment)
    (line,) = done.stderr.splitlines()
    assert (done.returncode, line.startswith("error: "), message in line) == (2, True, True)
    assert "; " in line
    assert not (tmp_path / "worker" / "calls").exists()


REMOTE = (
    ["setup"],
    ["train", "a.py"],
    ["run", "evaluate", "a.py"],
    ["logs"],
    ["status"],
    ["stop"],
    ["copy", ":a", "b"],
)
PROJECT = """ERROR: (gcloud.describe) Error parsing [tpu]. Failed to find attribute [project]."""
ACCOUNT = "ERROR: (gcloud.describe) You do not currently have an active account selected."
DENIED = "ERROR: (gcloud.describe) PERMISSION_DENIED: no such project."


STATES = (
    ({}, "NONE", "error: no slice slice in zone; check TPU, ZONE and PROJECT"),
    ({"QR": "q"}, "NONE", "error: no queued resource q in zone; make it with ACCELERATOR=TYPE"),
    ({"QR": "q"}, PROJECT, "error: no project is named; set PROJECT=ID, or run: gcloud config"),
    ({"QR": "q"}, ACCOUNT, "error: gcloud is not logged in; run: gcloud auth login"),
    (
        {"QR": "q"},
        DENIED,
        "error: gcloud cannot describe q in zone ((gcloud.describe) PERMISSION_DENIED: no such",
    ),
    ({"QR": "q"}, "SUSPENDED", "error: q is SUSPENDED: its machines were taken away"),
    ({"QR": "q"}, "FAILED", "error: q is FAILED: the request was not fulfilled (quota, or no"),
    (
        {"QR": "q"},
        "PROVISIONING",
        "error: q is PROVISIONING: it is not ready; run launch.sh status",
    ),
    ({}, "PREEMPTED", "error: slice is PREEMPTED: its machines were taken away"),
    ({}, "STOPPED", "error: slice is STOPPED: it has no machines"),
)


@pytest.mark.parametrize(
    ("arguments", "environment", "state", "message"),
    [
        *((["run", "evaluate", "a.py"], *case) for case in STATES),
        *((arguments, *STATES[1]) for arguments in REMOTE),
        *((arguments, *STATES[5]) for arguments in REMOTE if arguments != ["status"]),
    ],
)
def test_a_slice_that_cannot_be_reached(launch, tmp_path, arguments, environment, state, message):
    (tmp_path / "worker" / "states").write_text(f"{state}\n")
    done = launch(*arguments, **environment)
    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    assert line.startswith(message)
    assert "; " in line
    assert len(called(tmp_path)) == 1


@pytest.mark.parametrize(("environment", "state", "message"), STATES[5:])
def test_status_says_what_to_do(launch, tmp_path, environment, state, message):
    (tmp_path / "worker" / "states").write_text(f"{state}\n")
    done = launch("status", **environment)
    (line,) = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert line.startswith(message.removeprefix("error: "))
    assert len(called(tmp_path)) == 1


def test_a_machine_without_gcloud(launch, tmp_path):
    (tmp_path / "bin" / "gcloud").unlink()
    for tool in ("bash", "cat", "dirname", "mktemp", "rm"):
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool) or "")
    done = launch("stop", PATH=str(tmp_path / "bin"))
    assert done.stderr.startswith("error: gcloud is not installed; see https://cloud.google.com/")
    assert done.returncode == 2


def test_any_command_runs_as_train_does(launch, tmp_path):
    home = tmp_path / "worker"
    assert launch("run", "t5x-lite", "evaluate", "gs://b/a b.json").returncode == 0
    again = launch("train", "configs/tiny_pretrain.py", "--workdir", "gs://b/w")
    assert again.stderr == "a run goes on already: stop it first\n"
    assert launch("stop").returncode == 0
    wait_until(lambda: "no run" in launch("status").stdout)
    status = launch("status").stdout
    assert status.splitlines()[0] == "ACTIVE"
    assert "the last one ended with code 143" in status
    assert (home / "t5x_lite.log").read_text() == "<evaluate><gs://b/a b.json>saved\n"
    assert (home / "t5x_lite-run.log").read_text() == (home / "t5x_lite.log").read_text()
    assert not (home / "t5x_lite-train.log").exists()


@pytest.mark.parametrize("arguments", [["train"], ["run", "evaluate"]])
def test_a_config_that_the_workers_do_not_have(launch, arguments):
    start = (*arguments, "configs/mine.py", "--workdir", "gs://b/mine.py")
    (note,) = launch(*start, DRY_RUN="1").stderr.splitlines()
    assert note.startswith("note: configs/mine.py is not in the last commit here; commit it")
    for config in ("configs/tiny_pretrain.py", "/srv/mine.py"):
        assert launch(*arguments, config, "--workdir", "gs://b/w", DRY_RUN="1").stderr == ""


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--workdir", "/tmp/run"], "the work directory is on the disks of the workers"),
        (["--workdir=run"], "the work directory is on the disks of the workers"),
        ([], "without --workdir gs://BUCKET/NAME nothing is saved"),
    ],
)
def test_a_work_directory_that_is_not_kept(launch, option, message):
    start = ("train", "configs/tiny_pretrain.py", *option, "--steps", "3")
    (note,) = launch(*start, DRY_RUN="1").stderr.splitlines()
    assert note.startswith(f"note: {message}")


def test_a_config_with_changes_that_are_not_committed(launch, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(TPU, "here/scripts/tpu")
    (tmp_path / "here" / "a.py").write_text("old")
    git = ["git", "-C", "here", "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "a"]):
        subprocess.run([*git, *words], check=True)
    words = ["here/scripts/tpu/launch.sh", "train", "a.py", "--workdir=gs://b/w"]
    options = {"capture_output": True}
    options["env"] = {**os.environ, "TPU": "slice", "ZONE": "zone", "DRY_RUN": "1"}
    assert subprocess.run(words, **options).stderr == b""
    (tmp_path / "here" / "a.py").write_text("new")
    assert (
        b"note: a.py has changes that are not committed" in subprocess.run(words, **options).stderr
    )
    shutil.rmtree("here/.git")
    assert subprocess.run(words, **options).stderr == b""


def test_variables_in_front_of_a_command(launch, tmp_path):
    (done,) = shown(launch, "run", "A_1=b c", "JAX_PLATFORMS=", "t5x-lite", "vocab", "B=1")
    assert done[-1] == (
        rf"--command=A_1=b\ c JAX_PLATFORMS='' RESTART_WAIT=120 {WORKER} run 0 vocab B=1 "
    )
    (line,) = launch("run", "A=1").stderr.splitlines()
    assert line.startswith("error: run needs a command of t5x-lite; ")


@pytest.mark.parametrize(
    ("arguments", "environment", "where", "words"),
    [
        (["evaluate", "a b"], {}, ONE, r"run 0 evaluate a\ b "),
        (["--restarts", "3", "evaluate"], {"QR": "slice"}, QUEUED, "run 3 evaluate "),
        (["vocab"], {"WORKER": "2"}, ["--zone=zone", "--worker=2"], "run 0 vocab "),
    ],
)
def test_where_a_command_runs(launch, arguments, environment, where, words):
    (done,) = shown(launch, "run", *arguments, **environment)
    assert done[2:-1] == ["slice", *where]
    assert done[-1] == f"--command=RESTART_WAIT=120 {WORKER} {words}"


def test_copies_to_all_workers_and_from_one(launch, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a b.txt").write_text("")
    (tmp_path / "folder").mkdir()
    (up,) = shown(launch, "copy", "a b.txt", ":data")
    assert up == ["tpu-vm", "scp", "a b.txt", "slice:data", *ONE]
    (up,) = shown(launch, "copy", "a b.txt", "folder", ":", QR="q", SSH_OPTIONS="--internal-ip")
    assert up[2:] == ["a b.txt", "folder", "q:", *QUEUED, "--recurse", "--internal-ip"]
    (down,) = shown(launch, "copy", ":a", ":b c", "here", QR="q", WORKER="3")
    assert down[2:5] == ["q:a", "q:b c", "here"]
    assert down[5:] == ["--zone=zone", "--node=0", "--worker=3", "--recurse"]
    done = launch("copy", "a b.txt", ":data")
    assert done.stderr.startswith("note: a bucket (gs://) keeps files when the slice is deleted")
    assert (
        called(tmp_path)[-1]
        == "compute tpus tpu-vm scp a b.txt slice:data --zone=zone --worker=all"
    )


def test_options_of_ssh_reach_every_connection(launch):
    for arguments in (["setup"], ["status"], ["run", "evaluate"], ["logs"]):
        for words in shown(launch, *arguments, SSH_OPTIONS="--internal-ip --plain"):
            assert {"--internal-ip", "--plain"} <= {*words}


def test_delete_asks_and_is_idempotent(launch, tmp_path):
    (kept,) = launch("delete", QR="q").stderr.splitlines()
    assert kept == "error: q is kept; answer y, or pass --force"
    assert launch("delete", "--quiet", QR="q").returncode == 0
    again = launch("delete", "--force", QR="q")
    assert (again.returncode, again.stdout) == (0, "no q in zone: nothing to delete\n")
    describe = "compute tpus queued-resources describe q --zone=zone --format=value(state.state)"
    deleted = "compute tpus queued-resources delete q --zone=zone --force --quiet"
    assert called(tmp_path) == [describe, describe, deleted, describe]


def test_what_delete_would_run(launch):
    assert shown(launch, "delete") == [["tpu-vm", "delete", "slice", "--zone=zone", "--quiet"]]
    assert shown(launch, "delete", "--force", QR="q", PROJECT="p") == [
        ["queued-resources", "delete", "q", "--zone=zone", "--project=p", "--force", "--quiet"]
    ]


PAGES = ("docs/tutorials/tpu.md", "docs/guides/tpu_slice.md")


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_the_pages(launch, page):
    """Each launch.sh of a page, in a dry run: what a shell makes of it is a call of gcloud."""
    found = [block.text for block in blocks(ROOT / page) if "launch.sh" in block.text]
    lines = re.sub(r"\s*\\\n\s*", " ", "\n".join(found)).splitlines()
    commands = [line for line in lines if "launch.sh " in line]
    assert len(commands) >= 10
    for command in commands:
        command = re.sub(r"^while \w+=\$\((.*?)\) .*", r"\1", command).partition(" | ")[0]
        words = shlex.split(re.sub(r"\$(\w+)", r"\1", command), comments=True)
        given = [word.split("=", 1) for word in words[: words.index("scripts/tpu/launch.sh")]]
        environment = {"QR": "first", "ACCELERATOR": "v5litepod-16", **dict(given)}
        assert shown(launch, *words[words.index("scripts/tpu/launch.sh") + 1 :], **environment)


def test_restart_of_a_suspended_resource(launch):
    words = ("restart", "--spot", "train", "--restarts", "20", "a.py", "--workdir", "gs://b/run")
    lines = shown(launch, *words, QR="q", ACCELERATOR="v5litepod-16")
    assert [line[1] for line in lines] == ["delete", "create", "describe", "scp", "ssh", "ssh"]
    assert lines[1][-2:] == ["--node-id=q", "--spot"]
    assert lines[-1][-1].endswith(f"{WORKER} train 20 a.py --workdir gs://b/run ")


@pytest.mark.parametrize(
    ("state", "verbs"),
    [
        ("SUSPENDED", ["describe", "delete", "create", "describe", "describe"]),
        ("FAILED", ["describe", "delete", "create", "describe", "describe"]),
        ("NONE", ["describe", "create", "describe", "describe"]),
        ("WAITING_FOR_RESOURCES\nPROVISIONING\nACTIVE", ["describe"] * 3),
        ("ACTIVE", ["describe", "describe"]),
    ],
)
def test_restart_makes_the_resource_again(launch, tmp_path, state, verbs):
    home = tmp_path / "worker"
    (home / "states").write_text(f"{state}\n")
    (home / "t5x_lite-venv" / "bin" / "pip").write_text("#!/bin/bash\n")
    (home / "t5x_lite-venv" / "bin" / "pip").chmod(0o755)
    done = launch("restart", "run", "evaluate", "a.py", QR="q", ACCELERATOR="v5litepod-16")
    calls = [call.split()[3] for call in called(tmp_path)]
    # gcloud's scp copies nothing here, so that setup fails on the worker.
    assert calls == [*verbs, "scp", "ssh"]
    assert done.returncode != 0


def test_restart_ends_when_the_new_request_fails(launch, tmp_path):
    (tmp_path / "worker" / "states").write_text("PROVISIONING\nFAILED\n")
    done = launch("restart", "train", "a.py", QR="q", ACCELERATOR="v5litepod-16")
    assert done.returncode == 2
    assert "error: q is FAILED: the request was not fulfilled" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("state", "verbs", "note"),
    [
        ("NONE", ["describe", "create"], ""),
        ("SUSPENDED", ["describe", "delete", "create"], "it is deleted and created again"),
        ("ACTIVE", ["describe"], "note: q is there already: ACTIVE"),
    ],
)
def test_create_is_idempotent(launch, tmp_path, state, verbs, note):
    (tmp_path / "worker" / "states").write_text(f"{state}\n")
    done = launch("create", "--spot", QR="q", ACCELERATOR="v5litepod-16")
    assert (done.returncode, note in done.stderr) == (0, True)
    assert [call.split()[3] for call in called(tmp_path)] == verbs
