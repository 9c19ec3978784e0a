"""`t5x-lite glue`: a checkpoint of any family on the tasks of a benchmark, by one command."""

import json
import shutil
import signal
from typing import Any

import pytest

from scripts import goldens
from t5x_lite.cli import main
from t5x_lite.commands.runs import glue
from t5x_lite.commands.weights import import_hf
from t5x_lite.core.errors import InputError
from t5x_lite.core.signals import Terminated
from t5x_lite.evaluate.submission import FORMATS, check
from t5x_lite.metrics.benchmarks import GLUE_WITHOUT_WNLI
from t5x_lite.objectives.task_heads import Choose
from t5x_lite.train import benchmarks, training
from t5x_lite.train.benchmarks import SUITES
from t5x_lite.train.stopping import StopSignals
from tests.encoder_checkpoint import write_checkpoint

LETTERS = "abcdefghijklmno"
TRAIN, DEV, TEST = 9, 7, 5
ENCODERS = ("bert", "roberta", "xlm_roberta", "electra_discriminator", "deberta_v3")
SHORT = (
    *("--steps", "2", "--data.batch-size", "4", "--data.inputs-length", "12"),
    *("--evaluation.batch-size", "8"),
)
COLUMNS = {
    "MRPC": ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"),
    "STS-B": ("index", "sentence1", "sentence2", "score"),
    "MNLI": ("index", "sentence1", "sentence2", "gold_label"),
    "RTE": ("index", "sentence1", "sentence2", "label"),
}


def row(folder, number, *, labelled):
    """A line of a GLUE file; test files have no label."""
    first, second = (" ".join(LETTERS[(number + i) % 10 :][: 2 + i]) for i in (0, 1))
    words = {
        "MRPC": (str(number % 2), "1", "2", first, second),
        "STS-B": (str(number), first, second, f"{number % 6}.0"),
        "MNLI": (
            *(str(number), first, second),
            ("entailment", "neutral", "contradiction")[number % 3],
        ),
        "RTE": (str(number), first, second, ("entailment", "not_entailment")[number % 2]),
    }[folder]
    if folder == "MRPC":
        return "\t".join(words if labelled else (str(number), *words[1:]))
    return "\t".join(words if labelled else words[:-1])


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """GLUE's files of four tasks, a handful of rows each, and MNLI's diagnostic set."""
    root = tmp_path_factory.mktemp("GLUE")
    for folder, columns in COLUMNS.items():
        (root / folder).mkdir()
        held_out = ("dev_matched", "dev_mismatched") if folder == "MNLI" else ("dev",)
        tests = ("test_matched", "test_mismatched") if folder == "MNLI" else ("test",)
        for names, rows in ((("train",), TRAIN), (held_out, DEV), (tests, TEST)):
            for name in names:
                labelled = not name.startswith("test")
                head = columns if labelled else columns[:-1]
                if folder == "MRPC" and not labelled:
                    head = ("index", *columns[1:])
                lines = ["\t".join(head), *(row(folder, i, labelled=labelled) for i in range(rows))]
                (root / folder / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    (root / "diagnostic").mkdir()
    shutil.copy(root / "MNLI" / "test_matched.tsv", root / "diagnostic" / "diagnostic.tsv")
    return root


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, tiny_vocabulary):
    """A function: variant -> an imported checkpoint of Hugging Face's layout."""
    root, made = tmp_path_factory.mktemp("checkpoints"), {}

    def make(variant):
        if variant not in made and variant == "t5":
            goldens.write_release(goldens.read("t5"), root / "source", spiece=tiny_vocabulary)
            import_hf(root / "source", root / "t5")
            made[variant] = str(root / "t5")
        elif variant not in made:
            made[variant] = str(write_checkpoint(root, variant))
        return made[variant]

    return make


def runs_of(checkpoint, suite, directory, *tasks, options=(), **others):
    chosen = SUITES[suite].named(tasks)
    recipe = benchmarks.Recipe.of(
        SUITES[suite], checkpoint, directory=str(directory), epochs=None, options=options
    )
    arguments = {"workdir": "work", "together": False, "writes": False, **others}
    return recipe.runs(chosen, **arguments)


def test_classes_head_and_steps_follow_from_task_and_family(checkpoint, directory):
    found: Any = {
        (variant, run.tasks[0].name): run.experiment
        for variant in ("bert", "deberta_v3", "electra_discriminator")
        for run in runs_of(checkpoint(variant), "glue", directory, "mrpc", "stsb", "mnli")
    }
    classes = {name: one.objective.num_classes for (_, name), one in found.items()}
    assert classes == {"mrpc": 2, "stsb": 1, "mnli": 3}
    heads = {variant: one.objective.head for (variant, _), one in found.items()}
    assert heads == {
        "bert": "bert",
        "deberta_v3": "deberta",
        "electra_discriminator": "electra",
    }
    one = found["bert", "mrpc"]
    # Three epochs of nine rows, in batches of 32.
    assert (one.epochs, one.steps, one.optimizer.schedule.total_steps) == (3.0, 1, 1)
    assert one.data.inputs_length == one.model.longest_document
    assert one.data.vocabulary == f"{checkpoint('bert')}/files/vocabulary"
    options = ("--steps", "40", "--optimizer.schedule.peak", "0.5")
    [run] = runs_of(checkpoint("bert"), "glue", directory, "rte", options=options)
    schedule: Any = run.experiment.optimizer.schedule
    assert (run.experiment.steps, run.experiment.epochs) == (40, None)
    assert (schedule.peak, schedule.total_steps, schedule.warmup_steps) == (0.5, 40, 4)


def test_a_t5_writes_and_copa_chooses(checkpoint, directory, tmp_path):
    [run] = runs_of(checkpoint("t5"), "glue", directory, "mrpc")
    assert type(run.experiment.objective).__name__ == "Seq2Seq"
    assert type(run.experiment.optimizer).__name__ == "Adafactor"
    (tmp_path / "COPA").mkdir()
    question = {"premise": "a b", "choice1": "c", "choice2": "d", "question": "cause", "idx": 0}
    for name in ("train", "val"):
        content = json.dumps({**question, "label": 1}) + "\n"
        (tmp_path / "COPA" / f"{name}.jsonl").write_text(content)
    [run] = runs_of(checkpoint("bert"), "super_glue", tmp_path, "copa")
    assert run.experiment.objective == Choose(head="bert")
    assert (run.experiment.steps, run.experiment.data.layout.name) == (1, "choices")


def test_the_rows_of_the_averages_are_the_tasks():
    for suite in SUITES.values():
        prefix = suite.module.rpartition(".")[2]
        answered = {
            f"{prefix}_{name}" for task in suite.tasks for name in (task.measured or (task.name,))
        }
        assert answered == {name for names in suite.average.rows.values() for name in names}
        diagnostics = {f"{prefix}_{name}" for task in suite.tasks for name in task.diagnostics}
        of_suite = {n for n in FORMATS if n.startswith(f"{prefix}_")}
        assert (answered | diagnostics) == of_suite - {"glue_wnli"}


def glued(checkpoint, directory, workdir, *options):
    command = ["glue", "--init", checkpoint, "--directory", str(directory)]
    return main([*command, "--workdir", str(workdir), *options])


@pytest.mark.slow
@pytest.mark.gate("bert", "t5")
@pytest.mark.parametrize("variant", [*ENCODERS, "t5"])
def test_one_command_trains_measures_and_submits(variant, checkpoint, directory, tmp_path, capsys):
    arguments = (checkpoint(variant), directory, tmp_path, "--tasks", "mnli", "mrpc", *SHORT)
    assert glued(*arguments) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / "metrics.json").read_text())
    tasks = printed["tasks"]
    assert list(tasks) == ["glue_mnli_matched", "glue_mnli_mismatched", "glue_mrpc"]
    mrpc = tasks["glue_mrpc"]
    assert mrpc["score"] == pytest.approx((mrpc["f1"] + mrpc["accuracy"]) / 2)
    both = [tasks[f"glue_mnli_{name}"]["accuracy"] for name in ("matched", "mismatched")]
    rows = {"MNLI": sum(both) / 2, "MRPC": mrpc["score"]}
    assert printed["rows"] == pytest.approx(rows)
    assert printed["average"] == pytest.approx(sum(rows.values()) / 2)
    assert len(printed["missing"]) == len(GLUE_WITHOUT_WNLI.rows) - 2
    for name in ("glue_mnli_matched", "glue_mnli_mismatched", "glue_ax", "glue_mrpc"):
        text = (tmp_path / "submission" / "glue" / FORMATS[name].file).read_text()
        check(FORMATS[name], text, expected=[(i,) for i in range(TEST)])
    # Finished tasks are not repeated, and another task joins them.
    before = (tmp_path / "mrpc" / "metrics.jsonl").read_bytes()
    file = tmp_path / "submission" / "glue" / "MRPC.tsv"
    file.unlink()
    assert glued(*arguments) == 0
    again = capsys.readouterr()
    assert json.loads(again.out)["tasks"] == tasks
    assert again.err.count("skipping training, because") == 2
    assert "rewriting the missing submission files glue/MRPC.tsv" in again.err
    assert file.is_file()
    assert (tmp_path / "mrpc" / "metrics.jsonl").read_bytes() == before
    assert glued(*arguments, "--seed", "7") == 2
    message = "has a finished run with other settings (seed is 0 in the saved config and 7 now)"
    assert message in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.gate("bert")
@pytest.mark.parametrize("variant", ["bert", "t5"])
def test_one_run_of_all_tasks(variant, checkpoint, directory, tmp_path, capsys):
    arguments = ("--tasks", "mnli", "stsb", "--together", *SHORT)
    assert glued(checkpoint(variant), directory, tmp_path, *arguments) == 0
    printed = json.loads(capsys.readouterr().out)
    expected = {"glue_mnli_matched", "glue_mnli_mismatched", "glue_stsb"}
    assert set(printed["tasks"]) == expected
    assert (tmp_path / "together" / "result.json").is_file()
    for name in ("MNLI-m", "MNLI-mm", "STS-B"):
        content = (tmp_path / "submission" / "glue" / f"{name}.tsv").read_text()
        assert content.count("\n") == TEST + 1
    assert (tmp_path / "caches" / "mnli").is_dir() == (variant == "bert")
    assert glued(checkpoint(variant), directory, tmp_path, *arguments) == 0
    assert json.loads(capsys.readouterr().out) == printed


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"directory": "none"}, r"none does not exist; GLUE has the folders CoLA, SST-2, .*"),
        ({}, r"does not contain CoLA/train.tsv, CoLA/dev.tsv, .* and \d+ more files; use --tasks "
             r"mrpc stsb mnli rte for the available tasks"),
        ({"tasks": ["mrcp"]}, r"--tasks mrcp: GLUE has no such task; did you mean mrpc\?"),
        ({"tasks": ["wnli"]}, r"--tasks wnli: GLUE has no such task \(it is not trained on\)"),
        ({"tasks": ["boolq"]}, r"--tasks boolq: GLUE has no such task.*the tasks are cola, sst2"),
        ({"benchmark": "super_glue"}, r"does not contain BoolQ/train.jsonl, BoolQ/val.jsonl"),
        ({"epochs": 2.0, "overrides": ["--steps", "3"]}, r"--steps and --epochs 2 both set"),
        ({"overrides": ["--data.task", "a"]}, r"support the option --data.task; use --tasks"),
        ({"workdir": "gs://bucket/run"}, r"is in object storage, .* pass --output DIR"),
        ({"tasks": ["rte"], "overrides": ["--stpes", "3"]}, r"unknown option --stpes; did you"),
    ],
)  # fmt: skip
def test_wrong_input(changes, message, checkpoint, directory, tmp_path):
    arguments = {"directory": str(directory), "workdir": str(tmp_path / "run"), **changes}
    with pytest.raises(InputError, match=message) as raised:
        glue(checkpoint("bert"), **arguments)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()


def test_a_damaged_result_and_a_checkpoint_of_another_kind(checkpoint, directory, tmp_path):
    (tmp_path / "rte").mkdir()
    (tmp_path / "rte" / "result.json").write_text("{")
    arguments = {"directory": str(directory), "workdir": str(tmp_path), "tasks": ["rte"]}
    with pytest.raises(InputError, match=r"result.json is not a result of `t5x-lite glue`; delete"):
        glue(checkpoint("bert"), **arguments)
    with pytest.raises(InputError, match=r"none"):
        glue(str(tmp_path / "none"), **arguments)


def test_a_signal_during_the_last_step_ends_the_command(
    checkpoint, directory, tmp_path, monkeypatch
):
    trained = []

    def train(experiment):
        trained.append(experiment.workdir)
        StopSignals.latest = signal.SIGTERM

    monkeypatch.setattr(training, "train", train)
    arguments = {"directory": str(directory), "workdir": str(tmp_path)}
    with pytest.raises(Terminated):
        glue(checkpoint("bert"), **arguments, tasks=["rte", "mrpc"])
    assert len(trained) == 1
    assert not list(tmp_path.rglob("result.json"))
