"""The command line: which function of run each command calls, exit codes, one-line errors."""

import os
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest

import t5x_lite
from t5x_lite.cli import _parse_command, main
from t5x_lite.commands import COMMANDS
from t5x_lite.commands.runs import report
from t5x_lite.core.errors import InputError, Interrupted
from t5x_lite.core.files import new_directory

ROOT = Path(__file__).parents[1]

CONFIG = """
from t5x_lite.config import Experiment
from t5x_lite.data.config import Data
from t5x_lite.models.t5 import T5Config
from t5x_lite.objectives.likelihood import Seq2Seq
from t5x_lite.optim.config import Adafactor
from t5x_lite.optim.config import Constant

experiment = Experiment(
    model=T5Config(
        vocab_size=384, d_model=16, d_kv=8, d_ff=32, num_heads=2,
        num_encoder_layers=1, num_decoder_layers=1,
    ),
    objective=Seq2Seq(),
    data=Data(task="tasks.prose:spans", vocabulary="vocabulary"),
    optimizer=Adafactor(schedule=Constant()),
    steps=10,
)
"""


RUN = {"training": "train", "measuring": "evaluate"}
"""The functions that the commands call, by the module of t5x_lite.train."""


class RecordedRun:
    """Stands for t5x_lite.train: notes what is called, then does what the test says."""

    def __init__(self):
        self.calls = []
        self.then = lambda: None

    def function(self, name):
        def call(*args, **kwargs):
            self.calls.append((name, args, kwargs))
            return self.then()

        return call


@pytest.fixture(autouse=True)
def run(monkeypatch, tmp_path):
    run = RecordedRun()
    for name, function in RUN.items():
        module = types.ModuleType(f"t5x_lite.train.{name}")
        setattr(module, function, run.function(function))
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setattr(f"t5x_lite.train.{name}", module, raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    Path("tiny.py").write_text(CONFIG)
    return run


@pytest.fixture
def reporting(run, monkeypatch):
    """The command report does what the test says."""
    options = report.options

    def stand_in(workdirs, *, group=None, output=None):
        return run.function("report")(workdirs, group=group, output=output)

    monkeypatch.setattr(report, "function", stand_in)
    monkeypatch.setattr(report, "options", options)
    return run


def raising(error):
    def then():
        raise error

    return then


def test_train_passes_the_changed_experiment(run):
    before = list(sys.path)
    assert main(["train", "tiny.py", "--steps", "20", "--objective.z-loss=0"]) == 0
    [(name, (experiment,), kwargs)] = run.calls
    assert (name, kwargs) == ("train", {})
    assert experiment.steps == 20
    assert experiment.objective.z_loss == 0
    assert sys.path == before


def test_evaluate_takes_several_checkpoints_and_overrides(run):
    run.then = dict
    args = "evaluate tiny.py --checkpoint a b --data.batch-size 4 --step 7 --steps 30 --output out"
    args += " --adapters.use a --adapters.add a=lora()"
    assert main(args.split()) == 0
    [(name, (experiment, checkpoints), kwargs)] = run.calls
    assert (name, checkpoints) == ("evaluate", ("a", "b"))
    assert kwargs == {"step": 7, "use": "a", "output": "out"}
    assert (experiment.adapters.use, experiment.adapters.add) == ("", ("a=lora()",))
    assert (experiment.data.batch_size, experiment.steps) == (4, 30)


@pytest.mark.parametrize(
    "line",
    [
        "evaluate tiny.py --checkpoint w",
        "predict --checkpoint w --input i --output o",
        "score --checkpoint w --input i --output o",
        "embed --checkpoint w --input i --output o.npy",
        "export hf w dst",
    ],
)
def test_the_step_may_be_the_best(line, capsys):
    options, _ = _parse_command([*line.split(), "--step", "best"])
    assert options.step == "best"
    assert main([*line.split(), "--step", "-1"]) == 2
    assert capsys.readouterr().err == "error: --step must be at least 0, got -1\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "",
            "missing command; give one of init, train, finetune, glue, sweep, evaluate, predict",
        ),
        ("trian tiny.py", "unknown command trian; did you mean train?"),
        (
            "zzz",
            "unknown command zzz; the commands are init, train, finetune, glue, sweep, evaluate, "
            "predict",
        ),
        (
            "import",
            "the command import is incomplete; give import hf or import t5x or import adapter; "
            "see t5x-lite import hf --help",
        ),
        (
            "import pt a b",
            "the command import is incomplete; give import hf or import t5x or import adapter; "
            "see t5x-lite import hf --help",
        ),
        (
            "export t5x a b",
            "the command export is incomplete; give export hf or export adapter or "
            "export stablehlo; "
            "see t5x-lite export hf --help",
        ),
        ("import hf a", "missing DST; see t5x-lite import hf --help"),
        ("import t5x a b", "missing --vocabulary; see t5x-lite import t5x --help"),
        ("import hf a b --dtype float16", "invalid choice 'float16' for argument '--dtype'"),
        ("predict --inptu x", "unknown option --inptu; did you mean --input?"),
        ("predict --input x", "missing --checkpoint, --output; see t5x-lite predict --help"),
        ("predict --input x --checkpoint y --output", "Missing value for argument '--output'"),
        ("predict --input x --output y --checkpoint", "--checkpoint needs at least one dir"),
        (
            "predict --input x --output y --checkpoint z --num-beam 4",
            "unknown option --num-beam; d",
        ),
        (
            "predict --input x --output y --checkpoint v --checkpoint w",
            "option --checkpoint is given twice; give it once, followed by all of its values",
        ),
        (
            "predict --input x --output y --checkpoint z --seed 4294967296",
            "seed must be from 0 to",
        ),
        (
            "predict --input x --output y --checkpoint z --temperature nan",
            "temperature must be 0, or finite and at least 1e-06, got nan",
        ),
        (
            "score --input x --output y --checkpoint z --targets-length 0",
            "--targets-length must",
        ),
        ("predict --input x --output y --checkpoint z --num-beams 0", "--num-beams must be at lea"),
        ("predict --input x --output y --checkpoint z --seed -1", "--seed must be at least 0, got"),
        ("predict --input x --output y --checkpoint z --top-p 2", "top_p must be in (0, 1]"),
        (
            "predict --input x --output y --checkpoint z --num-beams 2 --temperature 1",
            "beam search does not support sampling, got num_beams 2 and temperature 1.0; set "
            "num_beams to 1",
        ),
        (
            "predict --input x --output y --checkpoint z --long-inputs keep",
            "invalid choice 'keep' for argument '--long-inputs'. Expected one of ('cut', 'refuse')",
        ),
        ("score --input x --output y --checkpoint z --batch-size 0", "--batch-size must be at le"),
        ("score --input x --output y --checkpoint z --step last", "--step: no type matching"),
        ("vocab --output x --size 3 --input", "--input needs at least one file"),
        ("vocab --output x --size 0 --input y", "--size must be at least 1, got 0"),
        ("report", "`t5x-lite report` requires at least one WORKDIR; see t5x-lite report --help"),
        ("export hf a b c", "unexpected argument 'c'"),
        ("train", "missing CONFIG; see t5x-lite train --help"),
        (
            "train --seed 1 tiny.py",
            "`t5x-lite train` requires CONFIG as the first argument: t5x-lite train CONFIG "
            "[--FIELD VALUE ...]",
        ),
        ("train tiyn.py", "tiyn.py does not exist; did you mean tiny.py?"),
        ("train tiny.py --model.d-modle 3", "unknown option --model.d-modle; did you mean --model"),
        ("evaluate tiny.py", "missing --checkpoint; see t5x-lite evaluate --help"),
        ("evaluate tiny.py --checkpoint", "--checkpoint needs at least one directory"),
        (
            "evaluate tiny.py --checkpoint a --ouptut b",
            "unknown option --ouptut; did you mean --ou",
        ),
        ("evaluate tiny.py b --checkpoint a", "unexpected argument 'b'"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(run, capsys, line, message):
    assert main(line.split()) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith(f"error: {message}")
    assert told.err.count("\n") == 1
    assert run.calls == []


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (InputError("a.jsonl:3: not JSON"), 2, "error: a.jsonl:3: not JSON\n"),
        (InputError("two\n  lines"), 2, "error: two lines\n"),
        (
            ValueError("first line\nsecond"),
            1,
            "error: ValueError: first line (--debug shows the traceback)\n",
        ),
        (
            PermissionError(13, "Permission denied", "work/run"),
            2,
            "error: work/run: Permission denied\n",
        ),
        (
            OSError(28, "No space left on device"),
            1,
            "error: OSError: [Errno 28] No space left on device (--debug shows the traceback)\n",
        ),
        (KeyError("x"), 1, "error: KeyError: 'x' (--debug shows the traceback)\n"),
        (MemoryError(), 1, "error: MemoryError (--debug shows the traceback)\n"),
        (KeyboardInterrupt(), 130, "error: interrupted\n"),
        (Interrupted(signal.SIGINT, 40), 130, "stopped by signal 2 after saving step 40\n"),
        (Interrupted(signal.SIGTERM, 40), 143, "stopped by signal 15 after saving step 40\n"),
        (
            Interrupted(signal.SIGINT, 0),
            130,
            "stopped by signal 2 before the first step; nothing is saved\n",
        ),
    ],
)
def test_exit_codes(reporting, capsys, error, code, told):
    reporting.then = raising(error)
    assert main(["report", "w"]) == code
    assert capsys.readouterr() == ("", told)


@pytest.mark.parametrize("line", ["--debug report w", "report --debug w", "report w --debug"])
def test_debug_anywhere_shows_the_traceback(reporting, capsys, line):
    reporting.then = raising(InputError("wrong"))
    assert main(line.split()) == 2
    told = capsys.readouterr().err
    assert told.startswith("Traceback (most recent call last):")
    assert told.endswith("error: wrong\n")


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert not stop.value.code
    assert capsys.readouterr().out == f"t5x-lite {t5x_lite.__version__}\n"


@pytest.mark.parametrize("line", ["train tiny.py --help", "train tiny.py --seed 1 -h"])
def test_help_after_a_config_shows_the_configs_options(capsys, line):
    with pytest.raises(SystemExit) as stop:
        main(line.split())
    assert not stop.value.code
    told = capsys.readouterr().out
    assert "usage: t5x-lite train tiny.py" in told
    assert "--model.d-model INT" in told
    assert "--optimizer.schedule.value FLOAT" in told


def test_help_of_evaluate_shows_its_own_options(capsys):
    for line in ("evaluate --help", "evaluate tiny.py --help"):
        with pytest.raises(SystemExit):
            main(line.split())
        assert "--checkpoint DIR [DIR ...]" in capsys.readouterr().out


def fresh_python(*args: str, **kwargs) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *args], env=environment, capture_output=True, text=True, **kwargs
    )


@pytest.mark.parametrize("command", [[], ["import"], *(name.split() for name in COMMANDS)])
@pytest.mark.slow
def test_help_imports_nothing_heavy(command):
    program = (
        "import sys\n"
        "from t5x_lite.cli import main\n"
        "try:\n"
        f"  main({[*command, '--help']!r})\n"
        "except SystemExit as stop:\n"
        "  heavy = ['jax', 'flax', 'optax', 'orbax', 'numpy', 'tensorflow', 'seqio']\n"
        "  assert not stop.code\n"
        "  assert not [name for name in heavy if name in sys.modules]\n"
        "  sys.exit(0)\n"
        "sys.exit('no help')\n"
    )
    done = fresh_python("-c", program)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("module", ["t5x_lite", "t5x_lite.cli"])
def test_both_modules_run_the_command_line(module):
    done = fresh_python("-m", module, "trian")
    assert done.returncode == 2
    assert done.stderr.startswith("error: unknown command trian")


def test_names_that_are_not_ascii_reach_libraries_under_the_c_locale(monkeypatch, tmp_path):
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setenv("PYTHONUTF8", "0")
    program = (
        "import sys\n"
        "def report(workdirs, *, group, output):\n"
        "  print(*workdirs, workdirs[0].encode().hex(), sys.flags.utf8_mode)\n"
        "from t5x_lite.cli import main\n"
        "from t5x_lite.commands import runs\n"
        "runs.report.options, runs.report.function = runs.report.options, report\n"
        "sys.exit(main())\n"
    )
    done = fresh_python("-c", program, "report", b"w\xc3\xa9", encoding="utf-8")
    assert (done.returncode, done.stdout, done.stderr) == (0, "wé 77c3a9 1\n", "")
    done = fresh_python("-X", "utf8=0", "-c", program, "report", "w")  # as asked, and no loop
    assert (done.returncode, done.stdout) == (0, "w 77 0\n")


def test_help_answers_within_a_second():
    before = os.times()
    done = fresh_python("-m", "t5x_lite", "--help")
    after = os.times()
    assert (done.returncode, done.stderr) == (0, "")
    # Processor time: this machine may be busy with something else.
    used = after.children_user - before.children_user
    assert used + after.children_system - before.children_system < 1.0


def test_a_reader_that_leaves_early_is_no_traceback():
    program = (
        "import sys\n"
        "def report(workdirs, *, group, output):\n"
        "  for _ in range(100000): print('line')\n"
        "from t5x_lite.cli import main\n"
        "from t5x_lite.commands import runs\n"
        "runs.report.options, runs.report.function = runs.report.options, report\n"
        "sys.exit(main(['report', 'w']))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout.readline() == b"line\n"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 1


def test_sigterm_cleans_up(reporting, tmp_path, capsys):
    before = signal.getsignal(signal.SIGTERM)

    def write():
        with new_directory(tmp_path / "made") as directory:
            (directory / "half").touch()
            os.kill(os.getpid(), signal.SIGTERM)
            pytest.fail("the signal was not seen")

    reporting.then = write
    assert main(["report", "w"]) == 143
    assert capsys.readouterr().err == "error: terminated\n"
    assert not [path for path in tmp_path.iterdir() if "made" in path.name]
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("predict --checkpoint w --input F --output F", "--input"),
        ("score --checkpoint w --input new --candidates F --output F", "--candidates"),
        ("rerank --checkpoint w --input F --beir d --output F", "--input"),
        ("score-pairs --checkpoint w --input F --output F", "--input"),
        ("fuse --runs new F --output F", "--runs"),
        ("mine --input F --checkpoint w --output F", "--input"),
        ("pairs --rule title_body --input F --output F", "--input"),
        ("synthesize requests --articles F --output F", "--articles"),
        ("synthesize collect --articles new --answers F --output F", "--answers"),
        ("search --vectors v --queries F --output F", "--queries"),
        ("index search --index i --queries F --output F", "--queries"),
        ("bm25 search --index i --queries F --output F", "--queries"),
        ("evaluate-sts --checkpoint w --input F --output F", "--input"),
        ("report F --output F", "--workdirs"),
        ("predict --checkpoint w --input link --output F", "--input"),
    ],
)
def test_an_output_that_is_an_input_is_refused(capsys, monkeypatch, tmp_path, line, option):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "F").write_text("kept")
    (tmp_path / "new").write_text("")
    (tmp_path / "link").symlink_to("F")
    assert main(line.split()) == 2
    assert capsys.readouterr().err == (
        f"error: --output F is also an input file ({option}); give a new output file\n"
    )
    assert (tmp_path / "F").read_text() == "kept"
